"""Phrase boosting: scores that favour the phrases a session expects, for many rows at once.

A session's phrases are an automaton after Aho and Corasick (https://doi.org/10.1145/360825.360855)
over tokens: every token that goes on with a phrase earns the weight, and what a phrase earned that
was begun but not finished is taken back when the text goes another way. It is NeMo's boosting tree
(https://arxiv.org/abs/2508.07014) with three differences:

- Every token earns the same. There later ones earn more, which invents phrases where tokens are short.
- A finished phrase keeps its bonus when a longer one that begins with it or contains it fails.
- In a beam search too, what tokens earn is taken from other tokens and not from the blank
  (:func:`share`), so that no phrase is written where nothing is said.

The rows of one call may have different phrases, or none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from parley.asr.decoding.topk import logsumexp
from parley.errors import InvalidMessageError


@dataclass(frozen=True)
class PhraseAutomaton:
    """The phrases of one session, ready to be walked token by token; state 0 is outside all phrases.

    A token for which a state has an arc earns the arc's bonus and leads to its target. For any
    other token, ``fallback`` takes back what was earned on credit, and the token is then looked up
    in state 0, where a token without an arc earns nothing and leads back to state 0.
    """

    arcs: NDArray[np.int32]
    """``[A, 3]``: state, token, target; sorted by state."""
    bonus: NDArray[np.float32]
    """``[A]``, natural logarithms as all scores."""
    fallback: NDArray[np.float32]
    """``[S]``, at most 0; that of state 0 is 0."""

    @classmethod
    def nothing(cls) -> PhraseAutomaton:
        """The automaton of a session that expects no phrase."""
        return cls(np.zeros((0, 3), np.int32), np.zeros(0, np.float32), np.zeros(1, np.float32))


class _Trie:
    """Token sequences as a tree; node 0 is the root. A node's parent and ``fail`` come before it."""

    def __init__(self, phrases: Sequence[Sequence[int]], weight: float) -> None:
        self.children: list[dict[int, int]] = [{}]
        self.earned = [0.0]
        self._ends = [False]
        for tokens in phrases:
            self._add(tokens, weight)
        self.fail, self.kept, self.order = self._link()

    def _add(self, tokens: Sequence[int], weight: float) -> None:
        node = 0
        for token in tokens:
            following = self.children[node].get(token)
            if following is None:
                following = len(self.children)
                self.children.append({})
                self.earned.append(self.earned[node] + weight)
                self._ends.append(False)
                self.children[node][token] = following
            node = following
        self._ends[node] = bool(tokens)

    def _link(self) -> tuple[list[int], list[float], list[int]]:
        """Find for each node the longest other node that its path ends with, and what it may keep."""
        fail, kept, order = [0] * len(self.children), [0.0] * len(self.children), [0]
        for node in order:  # grows while it is walked: breadth first
            for token, child in self.children[node].items():
                order.append(child)
                if node:
                    other = fail[node]
                    while other and token not in self.children[other]:
                        other = fail[other]
                    fail[child] = self.children[other].get(token, 0)
                kept[child] = self.earned[child] if self._ends[child] else max(kept[node], kept[fail[child]])
        return fail, kept, order

    def credit(self, node: int) -> float:
        """What is taken back if no phrase goes on after ``node``."""
        return max(self.earned[node] - self.kept[node], 0.0)


def build(phrases: Sequence[Sequence[int]], weight: float) -> PhraseAutomaton:
    """Make the automaton of token sequences.

    Args:
        phrases: token ids of each phrase; alternative spellings are phrases of their own.
        weight: what a token of a phrase earns, as a natural logarithm.
    """
    trie = _Trie(phrases, weight)
    arcs: list[tuple[int, int, int]] = []
    bonus: list[float] = []
    # What a state does not continue itself, the ends of its path may; only the root's arcs are
    # left to the fallback, for there can be many of them.
    following: list[dict[int, tuple[int, float]]] = [{} for _ in trie.children]
    for node in trie.order:
        own = {
            token: (child, trie.earned[child] - trie.earned[node] + trie.credit(node))
            for token, child in trie.children[node].items()
        }
        inherited = following[trie.fail[node]] if trie.fail[node] else {}
        following[node] = inherited | own
    for node, targets in enumerate(following):
        for token, (target, earned) in sorted(targets.items()):
            arcs.append((node, token, target))
            bonus.append(earned - trie.credit(node))
    fallback = [-trie.credit(node) for node in range(len(trie.children))]
    return PhraseAutomaton(
        np.array(arcs, np.int32).reshape(-1, 3), np.array(bonus, np.float32), np.array(fallback, np.float32)
    )


def share(scores: NDArray[np.float32], earned: NDArray[np.float32]) -> NDArray[np.float32]:
    """Let no bonus raise the probability of all tokens together: what one wins, the others lose.

    A bonus that only takes back is left as it is.

    Args:
        scores: f32 ``[n, tokens]``, raw scores of the tokens without the blank.
        earned: f32 ``[n, tokens]``.

    Returns:
        The bonus for the log probabilities, f32 ``[n, tokens]``.
    """
    gain = logsumexp(scores + earned) - logsumexp(scores)
    return np.asarray(earned - np.maximum(gain, 0.0), np.float32)


class PhraseForest:
    """The automata of all rows of a call; states are counted within each row's own automaton."""

    def __init__(self, automata: Sequence[PhraseAutomaton], tokens: int) -> None:
        """Join automata.

        Args:
            automata: one for each row.
            tokens: size of the vocabulary, without the blank.
        """
        sizes = np.array([len(automaton.fallback) for automaton in automata], np.int64)
        self._offsets = np.cumsum(sizes) - sizes
        counts = [len(automaton.bonus) for automaton in automata]
        owners = np.repeat(np.arange(len(automata)), counts)
        arcs = np.concatenate([automaton.arcs for automaton in automata])
        states = arcs[:, 0] + self._offsets[owners]
        self._tokens, self._targets = arcs[:, 1], arcs[:, 2]
        self._bonus = np.concatenate([automaton.bonus for automaton in automata])
        self._fallback = np.concatenate([automaton.fallback for automaton in automata])
        self._first = np.searchsorted(states, np.arange(sizes.sum() + 1))
        self._root_bonus = np.zeros((len(automata), tokens), np.float32)
        self._root_targets = np.zeros((len(automata), tokens), np.int32)
        at_root = arcs[:, 0] == 0
        self._root_bonus[owners[at_root], self._tokens[at_root]] = self._bonus[at_root]
        self._root_targets[owners[at_root], self._tokens[at_root]] = self._targets[at_root]

    def scores(self, rows: NDArray[np.int64], states: NDArray[np.int32]) -> NDArray[np.float32]:
        """What each token would earn: f32 ``[n, tokens]``.

        Args:
            rows: i64 ``[n]``.
            states: i32 ``[n]``, where in its phrases each of them stands.
        """
        earned = self._root_bonus[rows] - self.credit(rows, states)[:, None]
        owners, arcs = self._arcs(rows, states)
        earned[owners, self._tokens[arcs]] = self._bonus[arcs]
        return earned

    def advance(
        self, rows: NDArray[np.int64], states: NDArray[np.int32], tokens: NDArray[np.int64]
    ) -> NDArray[np.int32]:
        """Where each of ``n`` rows stands after its token: i32 ``[n]``."""
        after = self._root_targets[rows, tokens]
        owners, arcs = self._arcs(rows, states)
        taken = self._tokens[arcs] == tokens[owners]
        after[owners[taken]] = self._targets[arcs[taken]]
        return after

    def credit(self, rows: NDArray[np.int64], states: NDArray[np.int32]) -> NDArray[np.float32]:
        """What is taken back if the text ends here, f32 ``[n]``: at least 0."""
        return np.asarray(-self._fallback[self._offsets[rows] + states], np.float32)

    def _arcs(
        self, rows: NDArray[np.int64], states: NDArray[np.int32]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The arcs of all states but the roots, and to which of ``n`` each belongs."""
        inside = np.flatnonzero(states)
        nodes = self._offsets[rows[inside]] + states[inside]
        first = self._first[nodes]
        counts = self._first[nodes + 1] - first
        before = np.cumsum(counts) - counts
        arcs = np.arange(counts.sum()) + np.repeat(first - before, counts)
        return np.repeat(inside, counts), arcs


MAX_PHRASES = 200
MAX_PHRASE_LENGTH = 64
"""Characters."""
MAX_CHARACTERS = 4_000
"""Length of all phrases together."""
MAX_WEIGHT = 10.0

_WORD_MARK = "▁"


def fit_phrases(phrases: Sequence[str], more: Iterable[str]) -> list[str]:
    """Phrases, and as many of others as are taken beside them."""
    fitting = list(phrases)
    left = MAX_CHARACTERS - sum(map(len, fitting))
    for phrase in more:
        left -= len(phrase)
        if left < 0 or len(fitting) >= MAX_PHRASES:
            break
        if phrase.strip() and phrase not in fitting:
            fitting.append(phrase)
    return fitting


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
    """Tokens of SentencePiece's BPE: join the pair of neighbours that was learned first, until none is left.

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
