"""The last seconds of a stream of audio."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from parley.audio.buffer import AudioPiece


class RecentAudio:
    """Keeps what was heard last; a gap in the stream makes it forget what came before.

    Args:
        capacity: samples that are kept at least, once there are so many; at most one piece more.
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

        Args:
            position: where it begins.
            until: where it ends; None: with what was heard last.
        """
        if not self._pieces:
            return np.zeros(0, np.int16)
        kept = np.concatenate([piece.samples for piece in self._pieces])
        end = self._pieces[0].position + len(kept)
        wanted = min(max(end - position, 0), self._capacity)
        after = 0 if until is None else max(end - until, 0)
        return kept[max(len(kept) - wanted, 0) : max(len(kept) - after, 0)]
