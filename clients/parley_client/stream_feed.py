"""What one stream of a call sends."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from parley_client.queues import OutgoingMessage, SendQueue
from parley_client.resumption import Resumption

_END = OutgoingMessage(end=True)


class StreamFeed:
    """Requests that a server before had already, then those of the send queue, which outlives the stream."""

    def __init__(self, outbox: SendQueue, resumption: Resumption | None) -> None:
        self._outbox = outbox
        self._resumption = resumption
        self._repeated: deque[OutgoingMessage] = deque()
        self._is_paused = False
        self._is_finished = False

    @property
    def is_counted(self) -> bool:
        """Whether another server can go on, for which the position of each request has to be known."""
        return self._resumption is not None and self._resumption.can_move

    async def get(self) -> OutgoingMessage:
        """The content of the next request, at last the end mark (the caller owns the deadline)."""
        while True:
            content = self._take()
            if content is not None:
                return content
            await self._outbox.changed()

    def _take(self) -> OutgoingMessage | None:
        if self._is_finished:
            return _END
        if self._is_paused:
            return None
        kept = self._resumption
        if self._repeated:
            return self._repeated.popleft()
        if kept is not None and not kept.has_room:
            return None
        content_or_none = self._outbox.take()
        if content_or_none is not None and kept is not None:
            kept.on_sent(content_or_none)
        return content_or_none

    def pause(self) -> None:
        """Take nothing from the queue."""
        self._is_paused = True

    def resume(self, repeated: Sequence[OutgoingMessage] = ()) -> None:
        """Go on, first with ``repeated``."""
        self._repeated.extend(repeated)
        self._is_paused = False
        self._outbox.wake()

    def finish(self) -> None:
        """End the stream; what waits in the queue is left to another one."""
        self._is_finished = True
        self._outbox.wake()
