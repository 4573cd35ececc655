"""What the agent says while tools take their time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

DEFAULT_FILLERS: Mapping[str, Sequence[str]] = {
    "en": ("One moment, please.", "Let me check.", "Just a second."),
    "de": ("Einen Moment, bitte.", "Ich sehe nach."),
    "fr": ("Un instant, s'il vous plaît.", "Je regarde."),
    "es": ("Un momento, por favor.", "Voy a mirar."),
    "it": ("Un momento, per favore.",),
    "pt": ("Um momento, por favor.",),
    "nl": ("Een moment, alstublieft.",),
}
"""By language; in others the agent stays silent."""
_log = logging.getLogger(__name__)


def parse_fillers(text: str) -> dict[str, tuple[str, ...]]:
    """Read phrases that are written as ``One moment. | de: Einen Moment. | de: Ich sehe nach.``.

    Without a language in front, which has two or three letters, a phrase is English.
    """
    fillers: dict[str, tuple[str, ...]] = {}
    for item in text.split("|"):
        head, colon, rest = item.strip().partition(":")
        has_language = bool(colon) and head.isalpha() and len(head) in (2, 3)
        language, phrase = (head.lower(), rest.strip()) if has_language else ("en", item.strip())
        if phrase:
            fillers[language] = (*fillers.get(language, ()), phrase)
    return fillers


class Filler:
    """Says one phrase in a turn, if its tools take long.

    Args:
        phrase: what to say; empty: nothing.
        after_s: how long tools may take without it; 0: for ever.
        speak: says it; called at most once.
    """

    def __init__(self, phrase: str, after_s: float, speak: Callable[[str], Awaitable[None]]) -> None:
        self._phrase = phrase if after_s > 0 else ""
        self._after_s = after_s
        self._speak = speak

    @asynccontextmanager
    async def while_waiting(self) -> AsyncIterator[None]:
        """While the block runs, the phrase becomes due; afterwards it is not said any more."""
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
                _log.error("the filler was not said", exc_info=error)

    async def _wait(self) -> None:
        await asyncio.sleep(self._after_s)
        phrase, self._phrase = self._phrase, ""
        await self._speak(phrase)
