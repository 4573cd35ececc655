"""Greedy decoding: at each step the likeliest token, until the text ends or becomes too long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from parley.asr.decoding.boosting import PhraseAutomaton, PhraseForest, share
from parley.asr.readers.attention.network import AttentionNetwork, EncodedAudio, Past
from parley.runtime.onnx import Stop, StoppedError

_PER_S = 16_000
_REPEATS = {1: 8, 2: 5}
"""How often the last n tokens stand in a row in a text that is a loop, by n."""
_REPEATS_OF_MORE = 3
_LONGEST_PHRASE = 16
_LEAST_END = float(np.log(0.05))
"""Least log-probability of the end token at which the text of a loop is cut."""


@dataclass(frozen=True)
class GreedyRules:
    """What a family's decoder may write."""

    end: int
    """The token after a text."""
    tokens_per_s: float
    """Faster than speech: more tokens are hallucinated."""
    fewest_tokens: int
    """That may be read however short the audio is."""
    most_tokens: int
    """That the decoder has positions for, those of the prompt not included."""
    never: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """Ids of tokens that are not written."""
    never_first: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """Ids of tokens that no text begins with."""

    def limit(self, samples: int) -> int:
        """How many tokens are read of so much audio (16 kHz)."""
        spoken = int(samples / _PER_S * self.tokens_per_s) + 2
        return min(max(spoken, self.fewest_tokens), self.most_tokens)


@dataclass(frozen=True)
class GeneratedTokens:
    """A text as it was read."""

    ids: list[int]
    """Without the tokens of the prompt and the end."""
    confidence: float
    """Mean probability (0-1) of each token where it was read, the end included if it was reached."""
    logprob: float
    """Mean of the logarithms of the same probabilities."""
    ended: bool
    """Whether the text came to its end by itself."""
    prompt_logits: NDArray[np.float32]
    """Scores after each token of the prompt, f32 ``[prompt, V]``."""


@dataclass
class _Written:
    """The tokens so far, with the logarithms of their probabilities."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    """For each token: the log-probability of the end token at its position."""
    ended: bool = False

    def cut(self, start: int) -> None:
        """Cut a loop from ``start`` on where the end token was likeliest, at ``start`` if it never was."""
        end = start + int(np.argmax(self.ends[start : len(self.ids)]))
        end = end if self.ends[end] >= _LEAST_END else start
        del self.ids[end:], self.logprobs[end:]


def decode(
    network: AttentionNetwork,
    encoded: EncodedAudio,
    prompt: Sequence[int],
    rules: GreedyRules,
    boosting: PhraseAutomaton,
    *,
    limit: int,
    stop: Stop,
) -> GeneratedTokens:
    """Read encoded audio.

    Args:
        network: reads.
        encoded: what is read.
        prompt: tokens before the text, at least one.
        rules: of the family.
        boosting: phrases that are favoured.
        limit: most tokens.
        stop: ends it before the next token.

    Raises:
        InferenceError: the decoder failed.
        StoppedError: it was stopped.
    """
    phrases = _Phrases(boosting, rules.end) if len(boosting.bonus) else None
    written = _Written()
    fed: Sequence[int] = prompt
    past: Past | None = None
    prompt_logits: NDArray[np.float32] | None = None
    for _ in range(limit):
        if stop.requested:
            raise StoppedError
        logits, past = network.step(encoded, fed, past)
        prompt_logits = logits if prompt_logits is None else prompt_logits
        token = _choose(logits[-1], rules, written, phrases)
        if token == rules.end:
            written.ended = True
            break
        written.ids.append(token)
        fed = [token]
    assert prompt_logits is not None
    # A phrase that is said three times is followed by other words or by the end; only a decoder that is
    # caught in a loop repeats it until there is no more room.
    if not written.ended and (loop := repeated(written.ids)):
        written.cut(len(written.ids) - loop)
    return GeneratedTokens(
        written.ids,
        float(np.exp(written.logprobs).mean()),
        float(np.mean(written.logprobs)),
        written.ended,
        prompt_logits,
    )


def _choose(
    logits: NDArray[np.float32], rules: GreedyRules, written: _Written, phrases: _Phrases | None
) -> int:
    """The next token; its probability is noted as the network's own belief, whatever was favoured."""
    logits = logits.copy()
    logits[rules.never] = -np.inf
    if not written.ids:
        logits[rules.never_first] = -np.inf
    chosen = int((logits if phrases is None else phrases.favour(logits)).argmax())
    if phrases is not None:
        phrases.advance(chosen)
    highest = logits.max()
    total = np.log(np.exp(logits - highest).sum())
    written.logprobs.append(float(logits[chosen] - highest - total))
    written.ends.append(float(logits[rules.end] - highest - total))
    return chosen


def repeated(ids: list[int]) -> int:
    """How many tokens at the end repeat the phrase before them, a last part of it included; 0: no loop."""
    for length in range(1, _LONGEST_PHRASE + 1):
        start = len(ids) - length
        while start > 0 and ids[start - 1] == ids[start - 1 + length]:
            start -= 1
        run = len(ids) - max(start, 0)
        if run >= length * _REPEATS.get(length, _REPEATS_OF_MORE):
            return run - length
    return 0


class _Phrases:
    """Where a text stands in the phrases that are favoured."""

    _ROW = np.zeros(1, np.int64)

    def __init__(self, automaton: PhraseAutomaton, end: int) -> None:
        self._automaton = automaton
        self._end = end
        self._forest: PhraseForest | None = None
        self._state = np.zeros(1, np.int32)

    def favour(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """The scores with what each token earns, at the cost of the other tokens but not of the end."""
        earned = self._in(len(logits)).scores(self._ROW, self._state)
        scores = logits[None].copy()
        scores[:, self._end] = -np.inf
        bonus = share(scores, earned)
        # A phrase that was begun is given up where the text ends, as it is with any other token.
        bonus[:, self._end] = np.minimum(earned[:, self._end], 0.0)
        return np.asarray((logits[None] + bonus)[0], np.float32)

    def advance(self, token: int) -> None:
        """The next token."""
        assert self._forest is not None
        self._state = self._forest.advance(self._ROW, self._state, np.array([token], np.int64))

    def _in(self, tokens: int) -> PhraseForest:
        if self._forest is None:
            self._forest = PhraseForest([self._automaton], tokens)
        return self._forest
