"""The two queues of a call, both bounded.

:class:`EventQueue` holds the events that the application has not read yet, and :class:`SendQueue` the
messages and the audio that were not sent yet.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

from parley.errors import DeadlineExceededError, OverloadedError, ParleyError
from parley.protocol import INPUT_SAMPLE_RATE
from parley_client.errors import CallEndedError, SlowConsumerError

EventT = TypeVar("EventT")

BYTES_PER_MS = INPUT_SAMPLE_RATE * 2 // 1000
_MERGED_BYTES = 100 * BYTES_PER_MS


class EventQueue(Generic[EventT]):
    """A bounded queue between the task that receives and the application's one reader.

    Args:
        limit: Room for events.
        timeout_s: How long ``put`` waits for room (seconds).
    """

    def __init__(self, limit: int, timeout_s: float) -> None:
        self._limit = limit
        self._timeout_s = timeout_s
        self._waiting: deque[EventT] = deque()
        self._changed = asyncio.Event()
        self._ended = False
        self._discarding = False

    @property
    def is_full(self) -> bool:
        """Whether the next ``put`` waits for the reader."""
        return len(self._waiting) >= self._limit and not self._discarding

    async def put(self, event: EventT) -> None:
        """Queue an event; after :meth:`end` or :meth:`discard` it is dropped.

        Raises:
            SlowConsumerError: no room in time.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                while self.is_full:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError as error:
            unread = f"{len(self._waiting)} events were not read for {self._timeout_s:g} s"
            raise SlowConsumerError(unread) from error
        if not self._ended and not self._discarding:
            self._waiting.append(event)
            self._changed.set()

    async def get(self) -> EventT | None:
        """The next event; None after the last. The caller owns the deadline."""
        while not self._waiting and not self._ended:
            self._changed.clear()
            await self._changed.wait()
        if not self._waiting:
            return None
        event = self._waiting.popleft()
        self._changed.set()
        return event

    def end(self) -> None:
        """No event follows; what waits can still be read."""
        self._ended = True
        self._changed.set()

    def discard(self) -> None:
        """Drop what waits and what comes: the reader has left."""
        self._discarding = True
        self._waiting.clear()
        self._changed.set()


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """The content of one request."""

    message: bytes = b""
    audio: bytes = b""
    end: bool = False


class SendQueue:
    """A bounded queue between the application and the task that sends.

    Order is kept. A message and the audio directly behind it leave together, and so does audio that had to
    wait, because every request costs the server a scheduling round.

    Args:
        audio_ms: Room for audio (milliseconds).
        messages: Room for messages.
        outage_ms: Room for audio while the call has no server, and until that is sent (milliseconds).
    """

    def __init__(self, audio_ms: int, messages: int, outage_ms: int = 0) -> None:
        self._usual_room = self._room = audio_ms * BYTES_PER_MS
        self._outage_room = max(audio_ms, outage_ms) * BYTES_PER_MS
        self._max_messages = messages
        self._waiting: deque[OutgoingMessage] = deque()
        self._audio_bytes = 0
        self._messages = 0
        self._ended: ParleyError | None = None
        self._changed = asyncio.Event()
        self._has_server = True
        self._served_since_s = 0.0

    def put_message(self, message: bytes) -> None:
        """Queue a message.

        Raises:
            OverloadedError: too many are waiting.
            CallEndedError: the call has ended.
        """
        self._check_open()
        if self._messages >= self._max_messages:
            raise OverloadedError(f"{self._messages} messages are waiting to be sent")
        self._messages += 1
        self._push(OutgoingMessage(message=message))

    async def put_audio(self, audio: bytes, timeout_s: float) -> None:
        """Queue a chunk, waiting for room.

        Raises:
            DeadlineExceededError: no room within ``timeout_s``; time without a server does not count.
            CallEndedError: the call has ended.
        """
        began_s = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(timeout_s) as limit:
                while self._is_full(len(audio)):
                    self._check_open()
                    counted_from_s = max(began_s, self._served_since_s)
                    limit.reschedule(counted_from_s + timeout_s if self._has_server else None)
                    await self.changed()
        except TimeoutError as error:
            raise DeadlineExceededError(f"the server took no audio for {timeout_s:g} s") from error
        self._check_open()
        self._push_audio(audio)

    def offer_audio(self, audio: bytes) -> int:
        """Queue a chunk now, dropping the oldest audio if there is no room.

        Returns:
            How many bytes were dropped.
        """
        self._check_open()
        dropped = 0
        while self._is_full(len(audio)):
            oldest = next(message for message in self._waiting if message.audio)
            self._waiting.remove(oldest)
            self._audio_bytes -= len(oldest.audio)
            dropped += len(oldest.audio)
        self._push_audio(audio)
        return dropped

    def begin_outage(self) -> None:
        """The call has no server: there is more room, and no wait for room ends by its time."""
        self._has_server = False
        self._room = self._outage_room
        self._changed.set()

    def end_outage(self) -> None:
        """The call has a server again."""
        self._has_server = True
        self._served_since_s = asyncio.get_running_loop().time()
        self._changed.set()

    def end(self, reason: ParleyError | None = None) -> None:
        """Take no more. The first call counts.

        Args:
            reason: Raised by every later ``put``; what is queued is discarded. None: what is
                queued is sent before the end mark.
        """
        if self._ended is not None:
            return
        if reason is not None:
            self._waiting.clear()
            self._audio_bytes = self._messages = 0
        self._ended = reason or CallEndedError("the call has ended")
        self._push(OutgoingMessage(end=True))

    def take(self) -> OutgoingMessage | None:
        """The next request's content, at last the end mark; None: nothing waits."""
        if not self._waiting:
            return None
        first = self._waiting.popleft()
        if first.message:
            self._messages -= 1
        audio = [first.audio]
        size = len(first.audio)
        while self._waiting and (more := self._waiting[0].audio):
            if size and size + len(more) > _MERGED_BYTES:
                break
            audio.append(self._waiting.popleft().audio)
            size += len(more)
        self._audio_bytes -= size
        if self._has_server and self._audio_bytes <= self._usual_room:
            self._room = self._usual_room
        self._changed.set()
        return OutgoingMessage(message=first.message, audio=b"".join(audio), end=first.end)

    async def changed(self) -> None:
        """Wait until something was queued or taken, or until :meth:`wake` (the caller owns the deadline)."""
        self._changed.clear()
        await self._changed.wait()

    def wake(self) -> None:
        """End all waits for a change: those who wait look again."""
        self._changed.set()

    def _is_full(self, size: int) -> bool:
        return self._audio_bytes > 0 and self._audio_bytes + size > self._room

    def _check_open(self) -> None:
        if self._ended is not None:
            raise self._ended

    def _push_audio(self, audio: bytes) -> None:
        self._audio_bytes += len(audio)
        self._push(OutgoingMessage(audio=audio))

    def _push(self, message: OutgoingMessage) -> None:
        self._waiting.append(message)
        self._changed.set()
