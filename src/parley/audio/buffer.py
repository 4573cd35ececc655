"""The bounded buffer between a client that sends audio and a recogniser that hears it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class AudioPiece:
    """Audio without a gap."""

    samples: NDArray[np.int16]
    """Shape [n]."""
    position: int
    """Index of its first sample in everything that the client has sent."""
    arrived: float
    """Seconds, on the clock of the caller: when its last sample arrived."""


class AudioBuffer:
    """First in, first out; when it is full, the oldest audio makes room for the newest.

    Positions count every sample that was ever offered, also those that were skipped or dropped,
    so that they stay equal to the positions in the client's own recording.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.position = 0
        """Samples offered so far."""
        self._pieces: deque[AudioPiece] = deque()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def start(self) -> int:
        """Position of the oldest sample that is kept; without one, of the next."""
        return self._pieces[0].position if self._pieces else self.position

    def append(self, samples: NDArray[np.int16], now: float) -> int:
        """Add a chunk; returns how many samples were dropped to make room for it."""
        if len(samples) == 0:
            return 0
        self._pieces.append(AudioPiece(samples, self.position, now))
        self.position += len(samples)
        self._length += len(samples)
        excess = max(0, self._length - self.capacity)
        self._drop(excess)
        return excess

    def skip(self, count: int) -> None:
        """Count ``count`` samples that are left out."""
        self.position += count

    def take(self, limit: int, multiple: int = 1) -> AudioPiece | None:
        """Remove the oldest audio up to the next gap, at most ``limit`` samples.

        Args:
            limit: samples, a multiple of ``multiple``.
            multiple: the result's length is a multiple of this, unless a gap follows it.

        Returns:
            None when there is not enough audio.
        """
        run, gap_follows = self._run(limit)
        count = min(run, limit)
        if not gap_follows or count == limit:
            count -= count % multiple
        if count == 0:
            return None
        position = self._pieces[0].position
        parts: list[NDArray[np.int16]] = []
        arrived = 0.0
        missing = count
        while missing:
            first = self._pieces[0]
            arrived = first.arrived
            parts.append(first.samples[:missing])
            self._drop(min(missing, len(first.samples)))
            missing -= len(parts[-1])
        return AudioPiece(parts[0] if len(parts) == 1 else np.concatenate(parts), position, arrived)

    def _run(self, limit: int) -> tuple[int, bool]:
        """Length of the oldest audio without a gap (counted to ``limit``); whether a gap ends it."""
        length = 0
        for piece in self._pieces:
            if length and piece.position != self._pieces[0].position + length:
                return length, True
            length += len(piece.samples)
            if length >= limit:
                return length, False
        # Skipped samples after the last piece are a gap too.
        return length, bool(self._pieces) and self._pieces[0].position + length != self.position

    def _drop(self, count: int) -> None:
        self._length -= count
        while count:
            first = self._pieces[0]
            if len(first.samples) > count:
                rest = AudioPiece(first.samples[count:], first.position + count, first.arrived)
                self._pieces[0] = rest
                return
            count -= len(first.samples)
            self._pieces.popleft()


class RecentAudio:
    """Keeps the latest audio; a gap in the stream drops what came before it.

    Args:
        capacity: the newest samples, of which at least this many are kept, and at most one piece more.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._pieces: deque[AudioPiece] = deque()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def append(self, piece: AudioPiece) -> None:
        """Add the next piece of the stream."""
        last = self._pieces[-1] if self._pieces else None
        if last is not None and last.position + len(last.samples) != piece.position:
            self._pieces.clear()
            self._length = 0
        self._pieces.append(piece)
        self._length += len(piece.samples)
        while self._length - len(self._pieces[0].samples) >= self._capacity:
            self._length -= len(self._pieces.popleft().samples)

    def since(self, position: int, until: int | None = None) -> NDArray[np.int16]:
        """What is kept from the stream's sample ``position`` on: i16 ``[n]``, at most the capacity.

        ``until``: where it ends; None: at the latest audio.
        """
        if not self._pieces:
            return np.zeros(0, np.int16)
        kept = np.concatenate([piece.samples for piece in self._pieces])
        end = self._pieces[0].position + len(kept)
        wanted = min(max(end - position, 0), self._capacity)
        after = 0 if until is None else max(end - until, 0)
        return kept[max(len(kept) - wanted, 0) : max(len(kept) - after, 0)]
