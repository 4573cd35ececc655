"""The audio of one client on its way to a recogniser: buffer, marks, polls for final transcripts."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from parley.asr.messages import AsrReply
from parley.audio.buffer import AudioBuffer, AudioPiece
from parley.errors import OverloadedError
from parley.timeouts import loop_time

T = TypeVar("T")

_WINDOW = 512  # samples of one VAD decision: a shorter piece gains nothing
_MAX_PUSH = 16 * _WINDOW  # half a second: other streams of the recogniser do not wait long
_KEEP_OPEN_S = 20.0  # a recogniser closes a stream without requests after a minute
# A final transcript of another model comes with the reply to any piece, also to an empty one.
_FIRST_POLL_S = 0.016
_ATTEMPTS = 3
_RETRY_S = 0.05
_NOTHING = np.zeros(0, np.int16)


@dataclass(frozen=True)
class Mark(Generic[T]):
    """The utterance under way ends here."""

    position: int
    """Samples that the client had sent."""
    payload: T


class RecognizerFeed(Generic[T]):
    """Orders the requests to one recogniser; its owner makes them, one at a time.

    Audio that arrives during a request goes into the next one. Before a mark all audio up to its position
    is taken, in pieces of any length; elsewhere pieces are whole windows.

    Args:
        capacity: samples that wait at most; the oldest are dropped.
        max_poll_s: longest wait between two polls for a final transcript; it doubles from 16 ms on.
        least: samples of a piece at least, unless a mark or the end comes before.
    """

    def __init__(self, capacity: int, *, max_poll_s: float, least: int = 0) -> None:
        self.buffer = AudioBuffer(capacity)
        self._marks: deque[Mark[T]] = deque()
        self._changed = asyncio.Event()
        self._max_poll_s = max_poll_s
        self._least = least
        self._polls = 0  # since something changed

    def append(self, samples: NDArray[np.int16], now: float) -> int:
        """Add a chunk that arrived at ``now`` (seconds); returns the number of samples dropped for it."""
        dropped = self.buffer.append(samples, now)
        self.wake()
        return dropped

    def mark(self, payload: T) -> None:
        """End the utterance after the audio so far."""
        self._marks.append(Mark(self.buffer.position, payload))
        self.wake()

    @property
    def marks(self) -> int:
        """Marks that were not reached."""
        return len(self._marks)

    @property
    def marked(self) -> bool:
        """Whether the newest mark is behind all audio."""
        return bool(self._marks) and self._marks[-1].position == self.buffer.position

    def wake(self) -> None:
        """Let :meth:`wait` return."""
        self._changed.set()

    def take(self, *, drain: bool = False) -> AudioPiece | Mark[T] | None:
        """What to do next: push a piece, or end the utterance at a mark. None: wait for more audio.

        Args:
            drain: no more audio follows; the last piece may be shorter than a window.
        """
        if not self._marks:
            if len(self.buffer) < self._least and not drain:
                return None
            return self.buffer.take(_MAX_PUSH, 1 if drain else _WINDOW)
        left = self._marks[0].position - self.buffer.start
        piece = self.buffer.take(min(_MAX_PUSH, left)) if left > 0 else None
        return piece or self._marks.popleft()

    def take_reached(self) -> Mark[T] | None:
        """The next mark, if all audio before it was taken."""
        if not self._marks or self._marks[0].position > self.buffer.start:
            return None
        return self._marks.popleft()

    async def wait(self, *, awaits_final: bool) -> AudioPiece | None:
        """Wait for a change.

        Returns:
            None after a change. Otherwise an empty piece to push: it fetches a final transcript that is due,
            or keeps the stream open.
        """
        self._changed.clear()
        try:
            async with asyncio.timeout(self._poll_s(self._polls) if awaits_final else _KEEP_OPEN_S):
                await self._changed.wait()
        except TimeoutError:
            self._polls += 1
            return self._empty()
        self._polls = 0
        return None

    async def await_finals(
        self, awaits_final: Callable[[], bool], push: Callable[[AudioPiece], Awaitable[None]], limit_s: float
    ) -> bool:
        """Push empty pieces until all final transcripts have come; returns whether they came in time."""
        loop, polls = asyncio.get_running_loop(), 0
        overdue_at = loop.time() + limit_s
        while awaits_final():
            if loop.time() >= overdue_at:
                return False
            await asyncio.sleep(self._poll_s(polls))
            await push(self._empty())
            polls += 1
        return True

    def _poll_s(self, polls: int) -> float:
        return min(self._max_poll_s, _FIRST_POLL_S * float(1 << min(polls, 16)))

    def _empty(self) -> AudioPiece:
        return AudioPiece(_NOTHING, self.buffer.position, loop_time())


async def retry_if_busy(request: Callable[[], Awaitable[AsrReply]]) -> AsrReply:
    """Repeat a request that the recogniser was too busy for; a refusal leaves its stream unchanged.

    Raises:
        OverloadedError: it stays busy.
        ParleyError: any other failure.
    """
    wait_s = _RETRY_S
    for _ in range(_ATTEMPTS - 1):
        try:
            return await request()
        except OverloadedError:
            await asyncio.sleep(wait_s)
            wait_s *= 2
    return await request()
