"""Whether the loudspeaker may play."""

from __future__ import annotations

from collections import deque

_REMEMBERED = 32


class Gate:
    """What the server has said about playing: wait, go on, or drop a response for good.

    A response that may be interrupted holds up the whole loudspeaker, whatever is queued behind it, until
    the server has decided about that response.
    """

    def __init__(self) -> None:
        self._paused: dict[str, None] = {}
        self._dropped: deque[str] = deque(maxlen=_REMEMBERED)

    @property
    def is_open(self) -> bool:
        """Whether the loudspeaker may play."""
        return not self._paused

    def takes(self, response_id: str) -> bool:
        """Whether audio of this response is still wanted."""
        return response_id not in self._dropped

    def pause(self, response_id: str) -> None:
        """The user may be speaking over this response: nothing is played until it is decided."""
        if self.takes(response_id):
            self._paused[response_id] = None
        if len(self._paused) > _REMEMBERED:
            del self._paused[next(iter(self._paused))]

    def resume(self, response_id: str) -> None:
        """It was no interruption."""
        self._paused.pop(response_id, None)

    def interrupt(self, response_id: str) -> None:
        """It was one: nothing of this response is wanted any more, and what is behind it goes on."""
        self._paused.pop(response_id, None)
        if self.takes(response_id):
            self._dropped.append(response_id)
