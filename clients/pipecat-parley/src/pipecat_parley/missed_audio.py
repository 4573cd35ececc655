"""Audio that came while nobody could hear it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator


class MissedAudio:
    """Keeps the latest audio until somebody listens again.

    Args:
        size: most bytes; older audio is dropped.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._pieces: deque[bytes] = deque()
        self._held = 0

    def keep(self, audio: bytes) -> None:
        """Add a piece."""
        self._pieces.append(audio)
        self._held += len(audio)
        while self._held > self._size:
            self._held -= len(self._pieces.popleft())

    def take(self) -> Iterator[bytes]:
        """The pieces in their order; each is forgotten when it is taken."""
        while self._pieces:
            piece = self._pieces.popleft()
            self._held -= len(piece)
            yield piece
