"""Encoded audio to a text, token by token, always the likeliest one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parley.asr.decoding.boosting import PhraseAutomaton, PhraseForest, share
from parley.asr.moonshine.networks import END, START, EncodedAudio, Network, Past

_PER_S = 16_000
_TOKENS_PER_S = 6.5
"""Faster than anybody speaks: more tokens are made up."""
_FEWEST_TOKENS = 4
_REPEATS = {1: 8, 2: 5}
"""How often the last so many tokens may follow one another: "no no no no" is said, longer phrases are not."""
_REPEATS_OF_MORE = 3
_LONGEST_PHRASE = 16


@dataclass(frozen=True)
class GeneratedTokens:
    """A text as it was read."""

    ids: list[int]
    """Without the tokens that begin and end it."""
    confidence: float
    """Mean probability (0-1) of each token where it was read, the end included if it was reached."""
    encoder_ms: float
    decoder_ms: float
    """Wall time."""


class Abandoned(Exception):  # noqa: N818 - no error: whoever asked has said so
    """The text is not wanted any more, or not now."""


def most_tokens(samples: int) -> int:
    """How many tokens are read of so much audio."""
    return max(int(samples / _PER_S * _TOKENS_PER_S) + 2, _FEWEST_TOKENS)


def read(
    network: Network,
    audio: NDArray[np.float32],
    boosting: PhraseAutomaton,
    unwanted: Callable[[], bool] = lambda: False,
) -> GeneratedTokens:
    """Read audio: f32 ``[n]``, see :meth:`Network.encode`.

    Args:
        network: reads.
        audio: what is read.
        boosting: phrases that are favoured.
        unwanted: asked before every token whether to go on.

    Raises:
        InferenceError: the networks failed.
        Abandoned: it was unwanted.
    """
    began = time.perf_counter()
    heard = network.encode(audio)
    encoded = time.perf_counter()
    phrases = _Phrases(boosting) if len(boosting.bonus) else None
    ids: list[int] = []
    probabilities: list[float] = []
    token, past = START, None
    for _ in range(most_tokens(len(audio))):
        if unwanted():
            raise Abandoned
        token, probability, past = _next(network, heard, token, past, phrases)
        probabilities.append(probability)
        if token == END:
            break
        ids.append(token)
        if loop := repeated(ids):
            ids = ids[:-loop]
            probabilities = probabilities[: len(ids)]
            break
    return GeneratedTokens(
        ids,
        sum(probabilities) / len(probabilities),
        round(1000 * (encoded - began), 3),
        round(1000 * (time.perf_counter() - encoded), 3),
    )


def _next(
    network: Network, heard: EncodedAudio, token: int, past: Past | None, phrases: _Phrases | None
) -> tuple[int, float, Past]:
    logits, past = network.step(heard, token, past)
    chosen = int((logits if phrases is None else phrases.favour(logits)).argmax())
    if phrases is not None:
        phrases.advance(chosen)
    # Of the network's own belief, whatever was favoured.
    return chosen, float(np.exp(logits[chosen] - logits.max()) / np.exp(logits - logits.max()).sum()), past


def repeated(ids: list[int]) -> int:
    """How many of the last tokens say once more what stands before them; 0: the text is no loop."""
    for length in range(1, _LONGEST_PHRASE + 1):
        times = _REPEATS.get(length, _REPEATS_OF_MORE)
        tail = ids[-length * times :]
        if len(tail) == length * times and tail == tail[:length] * times:
            return length * (times - 1)
    return 0


class _Phrases:
    """Where a text stands in the phrases that are favoured."""

    _ROW = np.zeros(1, np.int64)

    def __init__(self, automaton: PhraseAutomaton) -> None:
        self._automaton = automaton
        self._forest: PhraseForest | None = None
        self._state = np.zeros(1, np.int32)

    def favour(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """The scores with what each token earns, at the cost of the other tokens but not of the end."""
        earned = self._in(len(logits)).scores(self._ROW, self._state)
        scores = logits[None].copy()
        scores[:, END] = -np.inf
        bonus = share(scores, earned)
        # A phrase that was begun is given up where the text ends, as it is with any other token.
        bonus[:, END] = np.minimum(earned[:, END], 0.0)
        return np.asarray((logits[None] + bonus)[0], np.float32)

    def advance(self, token: int) -> None:
        """The next token."""
        assert self._forest is not None
        self._state = self._forest.advance(self._ROW, self._state, np.array([token], np.int64))

    def _in(self, tokens: int) -> PhraseForest:
        if self._forest is None:
            self._forest = PhraseForest([self._automaton], tokens)
        return self._forest
