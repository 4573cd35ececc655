"""Speech tokens between the one who draws them and the one who makes audio of them."""

from __future__ import annotations

import asyncio

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int32]


class TokenQueue:
    """The tokens of one segment; T3's limit for a segment bounds it. One reader."""

    def __init__(self) -> None:
        self.drawn = 0
        """Tokens so far."""
        self.complete = False
        """Whether these are all."""
        self._waiting: list[Tokens] = []
        self._changed = asyncio.Event()

    def put(self, tokens: Tokens) -> None:
        """Add tokens."""
        if len(tokens):
            self._waiting.append(tokens)
            self.drawn += len(tokens)
            self._changed.set()

    def end(self) -> None:
        """No token follows."""
        self.complete = True
        self._changed.set()

    async def take(self) -> tuple[Tokens, bool]:
        """Wait for tokens or for the end; all that are there, and whether it is the end.

        After the end it must not be called again.
        """
        await self._changed.wait()
        self._changed.clear()
        tokens, self._waiting = self._waiting, []
        return np.concatenate([np.zeros(0, np.int32), *tokens]), self.complete
