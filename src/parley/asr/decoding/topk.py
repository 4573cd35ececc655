"""The best classes of each row with their log probabilities, straight from raw scores.

A log probability is a raw score minus the row's logsumexp, so only the ``k`` that are asked for need
be computed. :mod:`parley_torch.asr.topk` does the same on tensors.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def logsumexp(scores: NDArray[np.float32]) -> NDArray[np.float64]:
    """Logarithm of the sum of exponentials of each row.

    Args:
        scores: f32 ``[B, n]``, finite.

    Returns:
        f64 ``[B, 1]``.
    """
    highest = scores.max(axis=1, keepdims=True).astype(np.float64)
    return np.asarray(np.log(np.exp(scores - highest).sum(axis=1, keepdims=True)) + highest)


def top_k(
    scores: NDArray[np.float32], k: int, bonus: NDArray[np.float32] | None = None
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The ``k`` best classes of each row, best first; of equal ones the one with the lower id.

    Args:
        scores: f32 ``[B, n]``, raw and finite.
        k: at least 1, at most ``n``.
        bonus: f32 ``[B, n]``, added to the log probabilities before the best are chosen.

    Returns:
        Log probabilities with their bonus f64 ``[B, k]``, and class ids i64 ``[B, k]``.
    """
    ranked = scores if bonus is None else scores + bonus
    if k == 1:
        ids = ranked.argmax(axis=1)[:, None]
    else:
        ids = np.sort(np.argpartition(ranked, -k, axis=1)[:, -k:], axis=1)
        best_first = np.argsort(-np.take_along_axis(ranked, ids, axis=1), axis=1, kind="stable")
        ids = np.take_along_axis(ids, best_first, axis=1)
    best = np.take_along_axis(scores, ids, axis=1) - logsumexp(scores)
    if bonus is not None:
        best += np.take_along_axis(bonus, ids, axis=1)
    return best, ids
