"""Stand-ins for the networks whose answers follow from their input alone."""

from __future__ import annotations

import numpy as np

from parley.asr.decoding.greedy import Tokens
from parley.asr.parakeet.networks import DecodedPiece

VOCABULARY = 12
DURATIONS = (0, 1, 2, 3, 4)
LAYERS, WIDTH, FEATURES = 2, 6, 5


SUM_ERROR = 1e-9
"""How far scores may be apart that were summed in another order, in natural logarithms.

A score is a float64 sum of at most 40 frames x 11 steps of two log probabilities, each the sum of at most
18 terms and below 50: 440 x 2 x 18 x 50 x 2^-53 = 9e-11.
"""
ROUNDED = 1e-6
"""How far float32 values within 1 may be apart that were rounded from such sums: a few times 2^-24."""


def same_tokens(found: Tokens, expected: Tokens, *, shift: int = 0) -> bool:
    """Whether two rows have the same tokens, and confidences that differ in their rounding at most.

    Args:
        found: tokens.
        expected: the others.
        shift: how many frames ``found`` begins after ``expected``.
    """
    return (
        found.ids.tolist() == expected.ids.tolist()
        and (found.frames + shift).tolist() == expected.frames.tolist()
        and found.durations.tolist() == expected.durations.tolist()
        and np.allclose(found.confidences, expected.confidences, rtol=0, atol=ROUNDED)
    )


def same_state(name: str, found: np.ndarray, expected: np.ndarray) -> bool:
    """Whether an array of a decoder's state is the same: exactly if it counts, else but for its rounding."""
    if found.dtype.kind == "f":
        return np.allclose(found, expected, rtol=0, atol=SUM_ERROR if name == "scores" else ROUNDED)
    return np.array_equal(found, expected)


def sound(*pieces):
    """Audio of (milliseconds, loud) pieces."""
    return np.concatenate([np.full(ms * 16, 8_000 if loud else 0, np.int16) for ms, loud in pieces])


def _product(rows, matrix):
    """Each row times the matrix, summed one term after the other on every processor, batch and layout.

    A recurrent network with random weights would enlarge another order of the sums from step to step.
    """
    total = np.zeros((len(rows), matrix.shape[1]), np.float32)
    for column, weights in enumerate(matrix):
        total += rows[:, column, None] * weights
    return total


class RandomJoint:
    """A small recurrent network with random weights; it emits tokens, blanks and every duration.

    With ``durations=()`` it is an RNN-T.
    """

    inputs = FEATURES
    layers = LAYERS
    width = WIDTH

    def __init__(self, seed: int = 0, durations: tuple[int, ...] = DURATIONS) -> None:
        classes = VOCABULARY + 1 + len(durations)
        rng = np.random.default_rng(seed)
        self.rows_seen: list[int] = []
        self._embed = rng.standard_normal((VOCABULARY + 1, WIDTH)).astype(np.float32)
        self._mix = rng.standard_normal((LAYERS, WIDTH, WIDTH)).astype(np.float32)
        self._frame = 3 * rng.standard_normal((FEATURES, classes)).astype(np.float32)
        self._out = rng.standard_normal((WIDTH, classes)).astype(np.float32)

    def step(self, frames, targets, hidden, cell):
        self.rows_seen.append(len(targets))
        below = self._embed[targets]
        new_hidden, new_cell = np.empty_like(hidden), np.empty_like(cell)
        for layer in range(LAYERS):
            mixed = _product(hidden[layer], self._mix[layer])
            new_cell[layer] = 0.5 * cell[layer] + np.tanh(below + mixed)
            new_hidden[layer] = np.tanh(new_cell[layer])
            below = new_hidden[layer]
        scores = _product(frames, self._frame) + _product(below, self._out)
        scores[:, VOCABULARY] += 4.0  # blanks are common
        return scores, new_hidden, new_cell

    def scan(self, frames, targets, hidden, cell):
        rows, times, _ = frames.shape
        every = [
            np.repeat(values, times, axis=axis) for values, axis in ((targets, 0), (hidden, 1), (cell, 1))
        ]
        scores, hidden, cell = self.step(frames.reshape(rows * times, -1), *every)
        self.rows_seen[-1] = rows
        return scores.reshape(rows, times, -1), hidden[:, ::times], cell[:, ::times]


class ScriptedJoint:
    """Answers (token, duration class) pairs in turn, for one row."""

    inputs = FEATURES
    layers = 1
    width = 1

    def __init__(self, *script: tuple[int, int]) -> None:
        self._script = iter(script)

    def step(self, frames, targets, hidden, cell):
        token, duration = next(self._script)
        scores = np.zeros((1, VOCABULARY + 1 + len(DURATIONS)), np.float32)
        scores[0, token] = 9.0
        scores[0, VOCABULARY + 1 + duration] = 9.0
        return scores, hidden + 1, cell + 1

    def scan(self, frames, targets, hidden, cell):
        scores, hidden, cell = self.step(frames[:, 0], targets, hidden, cell)
        return scores[:, None], hidden, cell


class LoudnessModels:
    """Loud windows are speech, and a stretch of speech is the number of its feature frames.

    The transcript of a stretch is one word that names its length, such as ``t120``.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.failure: dict[str, Exception] = {}
        self.boosting = None

    def detect(self, windows, counts, state, context):
        self._called("detect", len(windows))
        probabilities = np.where(np.abs(windows).mean(axis=2) > 0.1, 0.9, 0.02).astype(np.float32)
        return probabilities, state + 1, context + 1

    def encode(self, features, lengths):
        self._called("encode", len(features))
        return features, lengths

    def decode(self, encoded, lengths, boosting=None):
        self.boosting = boosting
        self._called("decode", len(encoded))
        return [
            DecodedPiece(
                Tokens(
                    np.array([length], np.int32),
                    np.zeros(1, np.int32),
                    np.array([length // 8], np.int32),
                    np.full(1, 0.5, np.float32),
                )
            )
            for length in lengths
        ]

    def _called(self, name: str, rows: int) -> None:
        self.calls.append((name, rows))
        if name in self.failure:
            raise self.failure[name]
