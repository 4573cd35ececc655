"""A phrase that is spoken while tools take long."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

_log = logging.getLogger(__name__)


class Filler:
    """Speaks ``phrase`` at most once in a turn, when tools take longer than ``after_s``; 0: never."""

    def __init__(self, phrase: str, after_s: float, speak: Callable[[str], Awaitable[None]]) -> None:
        self._phrase = phrase if after_s > 0 else ""
        self._after_s = after_s
        self._speak = speak

    @asynccontextmanager
    async def while_waiting(self) -> AsyncIterator[None]:
        """Speak the phrase if the block runs longer than the limit; never after the block."""
        if not self._phrase:
            yield
            return
        task = asyncio.create_task(self._wait(), name="filler")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled() and (error := task.exception()) is not None:
                _log.error("the filler was not spoken", exc_info=error)

    async def _wait(self) -> None:
        await asyncio.sleep(self._after_s)
        phrase, self._phrase = self._phrase, ""
        await self._speak(phrase)
