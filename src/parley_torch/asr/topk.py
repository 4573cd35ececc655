"""The best classes of each row with their log probabilities, on torch tensors.

:func:`top_k` runs the fused kernel of :mod:`parley_torch.asr.topk_triton` where there is a GPU and
Triton's language, and plain torch elsewhere. It is what
:func:`parley.asr.decoding.topk.top_k` does on arrays.
"""

from __future__ import annotations

import importlib.util
from typing import Protocol

import torch


class TopK(Protocol):
    """Finds the best classes, as :func:`top_k`."""

    def __call__(
        self, scores: torch.Tensor, k: int, bonus: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See :func:`top_k`."""
        ...


def top_k(
    scores: torch.Tensor, k: int, bonus: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The ``k`` best classes of each row, best first.

    Args:
        scores: ``[B, n]``, raw and finite, of any floating type.
        k: at least 1, at most ``n``.
        bonus: ``[B, n]``, added to the log probabilities before the best are chosen.

    Returns:
        Log probabilities with their bonus f32 ``[B, k]``, and class ids i64 ``[B, k]``.
    """
    if scores.is_cuda and importlib.util.find_spec("triton") is not None:
        from parley_torch.asr import topk_triton  # noqa: PLC0415 - cannot be imported without Triton's language

        return topk_triton.top_k(scores, k, bonus)
    return plain_top_k(scores, k, bonus)


def plain_top_k(
    scores: torch.Tensor, k: int, bonus: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """:func:`top_k` in plain torch."""
    raw = scores.float()
    ranked = raw if bonus is None else raw + bonus.float()
    best, ids = ranked.topk(k, dim=-1)
    return best - raw.logsumexp(dim=-1, keepdim=True), ids
