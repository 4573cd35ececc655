"""When each word is spoken: an estimate.

T3 does not say which token belongs to which word. So a segment's time is divided among its words
by the number of spoken letters and by the pauses of punctuation. The length of the
segment is estimated from the pace so far until its last token is generated, which is
usually before its second chunk of audio is made; from then on the sum is exact and only the shares
are estimates. Marks already returned never change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from parley.tts.messages import WordMark
from parley.tts.normalization.normalizer import WrittenWord
from parley_torch.tts.t3.request import TOKENS_PER_SECOND

# Of ordinary speech: fifteen letters a second.
_TOKENS_PER_LETTER = 1.7
_SLOWEST, _FASTEST = 5.0, 0.8
# Shorter segments do not measure the pace.
_MIN_LETTERS = 10
# In letters: 130 and 260 ms.
_PAUSES = {",": 2, ";": 2, ":": 2, ".": 4, "!": 4, "?": 4, "\u2026": 4, "\u3002": 4}
_CLOSING = "\"')]}\u00bb\u201d\u2019"


@dataclass(frozen=True)
class SpokenSpan:
    """The words in a stretch of audio."""

    marks: list[WordMark]
    """Words that begin in it."""
    start_char: int = 0
    end_char: int = 0
    """Half-open span of the utterance's text, including the word under way at its start; may be empty."""


class Pace:
    """How fast an utterance is spoken."""

    def __init__(self) -> None:
        self.tokens_per_letter = _TOKENS_PER_LETTER

    def update(self, letters: int, tokens: int) -> None:
        """Count a segment of ``letters`` (see :func:`letters_of`) that took ``tokens``."""
        if letters >= _MIN_LETTERS:
            measured = min(max(tokens / letters, _FASTEST), _SLOWEST)
            self.tokens_per_letter = (self.tokens_per_letter + measured) / 2


class SegmentTimes:
    """The words of one segment in order.

    The segment begins at ``first_char`` of the utterance's text and ``first_sample`` of its audio.
    """

    def __init__(
        self, words: Sequence[WrittenWord], *, first_char: int, pace: Pace, rate: int, first_sample: int
    ) -> None:
        self._words = words
        self._first_char = first_char
        self._pace = pace
        self._per_token = rate / TOKENS_PER_SECOND
        self._sample = first_sample
        letters = [letters_of(word.spoken) for word in words]
        self._begins = [0, *accumulate(letters)]
        self._first_sample = first_sample
        self._marked = 0

    def advance(self, samples: int, tokens: int, *, complete: bool) -> SpokenSpan:
        """The words in the next ``samples`` samples.

        The segment has ``tokens`` tokens so far; these are all if ``complete``.
        """
        begin, self._sample = self._sample, self._sample + samples
        total = self._begins[-1]
        if not complete:
            tokens = max(tokens, round(total * self._pace.tokens_per_letter))
        length = tokens * self._per_token
        before = self._marked
        marks = []
        while self._marked < len(self._words):
            offset = int(length * self._begins[self._marked] / max(total, 1))
            at = max(self._first_sample + offset, begin)
            if at >= self._sample:
                break
            marks.append(self._mark(at))
        # The word under way continues, unless another begins with the first of these samples.
        continues = before > 0 and not (marks and marks[0].at_sample == begin)
        return self._span(marks, before - 1 if continues else before)

    def finish(self, tokens: int) -> SpokenSpan:
        """The remaining words after the segment's audio, which took ``tokens``."""
        self._pace.update(self._begins[-1], tokens)
        before = self._marked
        return self._span([self._mark(self._sample) for _ in range(before, len(self._words))], before)

    def _span(self, marks: list[WordMark], first: int) -> SpokenSpan:
        if first >= self._marked:
            return SpokenSpan(marks)
        start, end = self._words[first].start, self._words[self._marked - 1].end
        return SpokenSpan(marks, self._first_char + start, self._first_char + end)

    def _mark(self, at_sample: int) -> WordMark:
        word = self._words[self._marked]
        self._marked += 1
        return WordMark(
            start_char=self._first_char + word.start,
            end_char=self._first_char + word.end,
            at_sample=at_sample,
        )


def letters_of(spoken: str) -> int:
    """Duration of a word in letters, with the pause after it."""
    letters = sum(character.isalnum() for character in spoken)
    return letters + _PAUSES.get(spoken.rstrip(_CLOSING)[-1:], 0)
