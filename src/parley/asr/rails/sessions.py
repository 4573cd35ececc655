"""The streams that a server holds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from parley.errors import SessionNotFoundError, TooManySessionsError

StreamT = TypeVar("StreamT")


@dataclass
class _Entry(Generic[StreamT]):
    stream: StreamT
    used_at: float


class SessionTable(Generic[StreamT]):
    """Streams by correlation id: so many at most, and none that nobody has used for long.

    Whoever uses it makes sure that its calls do not overlap.
    """

    def __init__(self, limit: int, idle_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin empty.

        Args:
            limit: streams at once.
            idle_s: seconds without a chunk after which a stream is dropped.
            clock: seconds that never go back.
        """
        self._limit = limit
        self._idle_s = idle_s
        self._clock = clock
        self._entries: dict[str, _Entry[StreamT]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def open(self, key: str, stream: StreamT) -> None:
        """Begin a stream under a key that no open stream has.

        Raises:
            TooManySessionsError: the table is full.
        """
        if len(self._entries) >= self._limit:
            raise TooManySessionsError(f"{self._limit} audio streams are open; no more are accepted")
        self._entries[key] = _Entry(stream, self._clock())

    def get(self, key: str) -> StreamT:
        """The stream, which counts as used now.

        Raises:
            SessionNotFoundError: it was never opened, has ended, or was idle for too long.
        """
        entry = self._entries.get(key)
        if entry is None:
            raise SessionNotFoundError(f"audio stream {key} is not open: send START first")
        entry.used_at = self._clock()
        return entry.stream

    def update(self, key: str, stream: StreamT) -> None:
        """Replace an open stream by what has become of it."""
        self._entries[key].stream = stream

    def close(self, key: str) -> StreamT | None:
        """End a stream and return it; unknown keys are not an error."""
        entry = self._entries.pop(key, None)
        return None if entry is None else entry.stream

    def sweep(self) -> list[StreamT]:
        """Drop the streams that are idle, and return them."""
        before = self._clock() - self._idle_s
        idle = [key for key, entry in self._entries.items() if entry.used_at < before]
        return [self._entries.pop(key).stream for key in idle]
