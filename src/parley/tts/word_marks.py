"""From a synthesizer's word events to marks on the words of the text."""

from __future__ import annotations

import bisect
import re

from parley.tts.messages import WordMark

_WORD = re.compile(r"\S+")


class WordMarker:
    """Gives every word of a text (as separated by white space) one mark.

    Synthesizers report their own idea of words: several for ``10:30``, none for a dash, and
    positions that may point at the space before a word. A word without an event of its own
    counts as heard together with the one before it.
    """

    def __init__(self, text: str) -> None:
        self._spans = [match.span() for match in _WORD.finditer(text)]
        self._next = 0
        self._at_sample = 0

    def event(self, position: int, at_sample: int) -> list[WordMark]:
        """The marks due when the word at ``position`` (index of a character) begins."""
        # The word that holds the position, or the one after the space that it points at.
        index = bisect.bisect_right(self._spans, position, key=lambda span: span[1])
        if index < self._next or index == len(self._spans):
            return []
        unheard = self._take(index)
        self._at_sample = at_sample
        return [*unheard, *self._take(index + 1)]

    def rest(self) -> list[WordMark]:
        """The marks of words that had no event."""
        return self._take(len(self._spans))

    def _take(self, end: int) -> list[WordMark]:
        spans = self._spans[self._next : end]
        self._next = max(self._next, end)
        return [WordMark(start_char=start, end_char=stop, at_sample=self._at_sample) for start, stop in spans]
