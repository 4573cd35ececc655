"""The streams that a server holds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from parley.asr.stream import AsrStream
from parley.errors import SessionNotFoundError, TooManySessionsError


@dataclass
class _Entry:
    stream: AsrStream
    used_at: float


class SessionTable:
    """Streams by correlation id: so many at most, and none that nobody has used for long.

    Safe to use from several threads, so that idle streams can be swept while others are served.
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
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def open(self, key: str, stream: AsrStream) -> None:
        """Begin a stream; one that has the same key ends.

        Raises:
            TooManySessionsError: the table is full.
        """
        with self._lock:
            if key not in self._entries and len(self._entries) >= self._limit:
                raise TooManySessionsError(f"{self._limit} audio streams are open; no more are accepted")
            self._entries[key] = _Entry(stream, self._clock())

    def get(self, key: str) -> AsrStream:
        """The stream, which counts as used now.

        Raises:
            SessionNotFoundError: it was never opened, has ended, or was idle for too long.
        """
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                raise SessionNotFoundError(f"audio stream {key} is not open: send START first")
            entry.used_at = self._clock()
            return entry.stream

    def update(self, key: str, stream: AsrStream) -> None:
        """Replace an open stream by what has become of it; does nothing once it has ended."""
        with self._lock:
            if key in self._entries:
                self._entries[key].stream = stream

    def close(self, key: str) -> None:
        """End a stream; unknown keys are not an error."""
        with self._lock:
            self._entries.pop(key, None)

    def sweep(self) -> int:
        """Drop the streams that are idle; return how many."""
        with self._lock:
            before = self._clock() - self._idle_s
            idle = [key for key, entry in self._entries.items() if entry.used_at < before]
            for key in idle:
                del self._entries[key]
            return len(idle)
