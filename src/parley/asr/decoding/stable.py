"""Which words of a partial transcript will stay, and how often partial transcripts took words back.

Words on which the last partials agree (https://arxiv.org/abs/2005.11185), and all readings of a beam
search where there is one, are called stable. Who shows or acts on stable words only hardly ever has
to take one back; :func:`count_retractions` measures how often.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass


def agreed(one: Sequence[str], other: Sequence[str]) -> int:
    """How many first words two texts have in common."""
    for count, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return count
    return min(len(one), len(other))


class StablePrefix:
    """Follows the partial transcripts of one utterance.

    It keeps the last ``agreement`` partials, no more.
    """

    def __init__(self, agreement: int = 2) -> None:
        """Begin an utterance.

        Args:
            agreement: partials, the newest included, that must agree on a word.
        """
        self._agreement = agreement
        self._last: deque[tuple[str, ...]] = deque(maxlen=agreement)

    def fork(self) -> StablePrefix:
        """Return an independent copy."""
        twin = StablePrefix(self._agreement)
        twin._last.extend(self._last)
        return twin

    def push(self, words: Sequence[str], alternatives: Sequence[Sequence[str]] = ()) -> int:
        """Take the next partial transcript.

        The last word of a partial is never stable: it may be the beginning of a longer one.

        Args:
            words: the partial.
            alternatives: other readings of the same audio.

        Returns:
            How many of its first words are stable.
        """
        self._last.append(tuple(words))
        if len(self._last) < self._agreement:
            return 0
        others = [*self._last, *alternatives]
        return max(min(len(words) - 1, *(agreed(words, other) for other in others)), 0)


@dataclass(frozen=True)
class Retractions:
    """What became of the words that were shown."""

    shown: int
    """Words that appeared; one that was taken back and shown again counts twice."""
    taken_back: int
    """Of these, words that were changed or removed later."""

    @property
    def share(self) -> float:
        """0-1."""
        return self.taken_back / self.shown if self.shown else 0.0

    def __add__(self, other: Retractions) -> Retractions:
        """Of several utterances."""
        return Retractions(self.shown + other.shown, self.taken_back + other.taken_back)


def count_retractions(texts: Sequence[Sequence[str]]) -> Retractions:
    """Count the words that were shown and taken back.

    Args:
        texts: the words that were shown one after another for one utterance, the final ones last.
    """
    shown = taken_back = 0
    before: Sequence[str] = ()
    for words in texts:
        stay = agreed(before, words)
        shown += len(words) - stay
        taken_back += len(before) - stay
        before = words
    return Retractions(shown, taken_back)
