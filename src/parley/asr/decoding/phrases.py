"""Phrases as a client writes them into the automaton that boosts them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

from parley.asr.decoding.boosting import PhraseAutomaton, build
from parley.errors import InvalidMessageError

MAX_PHRASES = 200
MAX_PHRASE_LENGTH = 64
"""Characters."""
MAX_CHARACTERS = 4_000
"""Of all phrases together."""
MAX_WEIGHT = 10.0

_WORD_MARK = "▁"


def compile_phrases(
    phrases: Sequence[str], weight: float, vocabulary: tuple[str, ...], *, cased: bool = False
) -> PhraseAutomaton:
    """Spell phrases in a model's tokens and make their automaton.

    Each word is spelled as SentencePiece's BPE does, with as few tokens as possible, and by the
    longest token at each place; the spellings that differ are all boosted, for a transducer may
    emit any. A phrase that the vocabulary cannot spell as it is written is spelled in lower case.

    Args:
        phrases: words or several words each.
        weight: bonus of each token of a phrase (natural logarithm); 0 boosts nothing.
        vocabulary: tokens by id.
        cased: whether the model writes capital letters: then each phrase is boosted as it is written, as it
            is at the beginning of a sentence, and as a name.

    Raises:
        InvalidMessageError: too many or too long phrases, a weight out of range, or a phrase that
            has no spelling.
    """
    if not 0.0 <= weight <= MAX_WEIGHT:
        raise InvalidMessageError(f"phrase_weight is {weight}; it must be 0 to {MAX_WEIGHT:g}")
    if len(phrases) > MAX_PHRASES:
        raise InvalidMessageError(f"{len(phrases)} phrases; at most {MAX_PHRASES} are taken")
    if sum(len(phrase) for phrase in phrases) > MAX_CHARACTERS:
        raise InvalidMessageError(f"the phrases have more than {MAX_CHARACTERS} characters")
    if not phrases or weight == 0.0:
        return PhraseAutomaton.nothing()
    ids = _token_ids(vocabulary)
    written = {form: None for phrase in phrases for form in (_cases(phrase) if cased else [phrase])}
    return build([spelling for form in written for spelling in _spellings(form, ids)], weight)


@lru_cache(maxsize=4)
def _token_ids(vocabulary: tuple[str, ...]) -> Mapping[str, int]:
    """Ids by token, without control tokens; the first one where a token occurs twice."""
    ids: dict[str, int] = {}
    for number, token in enumerate(vocabulary):
        if token and not (token.startswith("<") and token.endswith(">")):
            ids.setdefault(token, number)
    return ids


def _cases(phrase: str) -> list[str]:
    words = phrase.split()
    return [
        phrase,
        " ".join([*(word[:1].upper() + word[1:] for word in words[:1]), *words[1:]]),
        " ".join(word[:1].upper() + word[1:] for word in words),
    ]


def _spellings(phrase: str, ids: Mapping[str, int]) -> list[list[int]]:
    if not phrase.split() or len(phrase) > MAX_PHRASE_LENGTH:
        raise InvalidMessageError(
            f"a phrase has {len(phrase)} characters; it must be 1 to {MAX_PHRASE_LENGTH}"
        )
    for text in (phrase, phrase.lower()):
        words = [_WORD_MARK + word for word in text.split()]
        found: list[list[int]] = []
        for spell in (_by_merging, _fewest, _longest_first):
            pieces = [spell(word, ids) for word in words]
            spelling = [ids[piece] for word in pieces for piece in word]
            if all(pieces) and spelling not in found:
                found.append(spelling)
        if found:
            return found
    raise InvalidMessageError(f"phrase {phrase!r} has characters that this model never writes")


def _by_merging(word: str, ids: Mapping[str, int]) -> list[str]:
    """As SentencePiece's BPE: join the pair of neighbours that was learned first, until none is left.

    Its vocabulary lists tokens in the order in which they were learned.
    """
    pieces = list(word)
    while True:
        pairs = [
            (ids[left + right], index)
            for index, (left, right) in enumerate(pairwise(pieces))
            if left + right in ids
        ]
        if not pairs:
            return pieces if all(piece in ids for piece in pieces) else []
        _, at = min(pairs)
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]


def _fewest(word: str, ids: Mapping[str, int]) -> list[str]:
    """With as few tokens as possible; of equal counts, the one whose last token is longest."""
    best: list[list[str] | None] = [[], *[None] * len(word)]
    for end in range(1, len(word) + 1):
        for start in range(end):
            before = best[start]
            so_far = best[end]
            if before is None or word[start:end] not in ids:
                continue
            if so_far is None or len(before) + 1 < len(so_far):
                best[end] = [*before, word[start:end]]
    return best[-1] or []


def _longest_first(word: str, ids: Mapping[str, int]) -> list[str]:
    """From the left, always the longest token."""
    pieces: list[str] = []
    at = 0
    while at < len(word):
        end = next((end for end in range(len(word), at, -1) if word[at:end] in ids), None)
        if end is None:
            return []
        pieces.append(word[at:end])
        at = end
    return pieces
