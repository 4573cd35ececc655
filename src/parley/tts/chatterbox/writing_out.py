"""Normalisation beside the event loop."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

from parley.tts.normalization.normalizer import SpokenText, TextNormalizer

_log = logging.getLogger(__name__)


class ThreadNormalizer:
    """Runs a normaliser in one thread, for a limited time.

    Args:
        normalizer: used by that thread alone.
        limit_s: seconds after which the text is spoken as it is written.
    """

    def __init__(self, normalizer: TextNormalizer, *, limit_s: float) -> None:
        self._normalizer = normalizer
        self._limit_s = limit_s
        self._thread = ThreadPoolExecutor(1, "normalization")

    async def normalize(self, text: str, language: str) -> SpokenText:
        """The text to say; never fails."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._limit_s):
                return await loop.run_in_executor(self._thread, self._normalizer.normalize, text, language)
        except TimeoutError:
            _log.warning("a text of %d characters took too long to normalise", len(text))
            return self._normalizer.unchanged(text)

    def close(self) -> None:
        """Free the thread, when it has done what it is doing."""
        self._thread.shutdown(wait=False, cancel_futures=True)
