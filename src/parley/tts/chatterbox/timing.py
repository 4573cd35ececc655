"""When each word is heard: an estimate.

T3 does not say which token belongs to which word. So a segment's time is shared out among its words
by what is said for each, in letters, and by the pauses that punctuation asks for. How long the
segment is going to be is guessed from the pace so far until its last token is drawn, which is
usually before its second chunk of audio is made; from then on the sum is right and only the shares
are guessed. Marks that were given are never changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from parley.tts.messages import WordMark
from parley.tts.normalization.alignment import WrittenWord

TOKENS_PER_SECOND = 25
# Of ordinary speech: fifteen letters a second.
_TOKENS_PER_LETTER = 1.7
_SLOWEST, _FASTEST = 5.0, 0.8
# A segment tells something of the pace if it has as many letters.
_ENOUGH_LETTERS = 10
# In letters: 130 and 260 ms.
_PAUSES = {",": 2, ";": 2, ":": 2, ".": 4, "!": 4, "?": 4, "\u2026": 4, "\u3002": 4}
_CLOSING = "\"')]}\u00bb\u201d\u2019"


@dataclass(frozen=True)
class HeardWords:
    """What is heard in a stretch of audio."""

    marks: list[WordMark]
    """Words that begin in it."""
    start_char: int = 0
    end_char: int = 0
    """Half-open span of the utterance's text, with the word that was under way; equal: nothing."""


class Pace:
    """How fast an utterance is spoken."""

    def __init__(self) -> None:
        self.tokens_per_letter = _TOKENS_PER_LETTER

    def learn(self, letters: int, tokens: int) -> None:
        """A segment of so many letters (see :func:`letters_of`) took so many tokens."""
        if letters >= _ENOUGH_LETTERS:
            measured = min(max(tokens / letters, _FASTEST), _SLOWEST)
            self.tokens_per_letter = (self.tokens_per_letter + measured) / 2


class SegmentTimes:
    """The words of one segment, in the order in which they are heard.

    Args:
        words: of the segment's text.
        first_char: where the segment begins in the utterance's text.
        pace: of the utterance.
        rate: hertz of the audio.
        first_sample: where the segment's audio begins in the utterance's.
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

    def advance(self, samples: int, tokens: int, *, complete: bool) -> HeardWords:
        """What is heard in the next ``samples`` samples.

        Args:
            samples: more audio than was there before.
            tokens: of the segment that are known.
            complete: whether these are all.
        """
        begin, self._sample = self._sample, self._sample + samples
        total = self._begins[-1]
        if not complete:
            tokens = max(tokens, round(total * self._pace.tokens_per_letter))
        length = tokens * self._per_token
        before = self._marked
        marks = []
        while self._marked < len(self._words):
            at = self._first_sample + int(length * self._begins[self._marked] / max(total, 1))
            if at >= self._sample:
                break
            marks.append(self._mark(max(at, begin)))
        # The word under way goes on, unless another begins with the first of these samples.
        goes_on = before > 0 and not (marks and marks[0].at_sample == begin)
        return self._heard(marks, before - 1 if goes_on else before)

    def finish(self, tokens: int) -> HeardWords:
        """The words that are left: the segment's audio is over, and took so many tokens."""
        self._pace.learn(self._begins[-1], tokens)
        before = self._marked
        return self._heard([self._mark(self._sample) for _ in range(before, len(self._words))], before)

    def _heard(self, marks: list[WordMark], first: int) -> HeardWords:
        if first >= self._marked:
            return HeardWords(marks)
        start, end = self._words[first].start, self._words[self._marked - 1].end
        return HeardWords(marks, self._first_char + start, self._first_char + end)

    def _mark(self, at_sample: int) -> WordMark:
        word = self._words[self._marked]
        self._marked += 1
        return WordMark(
            start_char=self._first_char + word.start,
            end_char=self._first_char + word.end,
            at_sample=at_sample,
        )


def letters_of(spoken: str) -> int:
    """How long a word takes to say, in letters."""
    letters = sum(character.isalnum() for character in spoken)
    return letters + _PAUSES.get(spoken.rstrip(_CLOSING)[-1:], 0)
