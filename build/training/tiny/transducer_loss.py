"""Transducer losses on a CPU: RNN-T (https://arxiv.org/abs/1211.3711) and TDT (https://arxiv.org/abs/2304.06795).

NeMo has the latter for CUDA only.  The forward-backward pass over the lattice is compiled by numba;
its occupation probabilities are the gradient, so everything outside the lattice is left to autograd.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[Any]

_IMPOSSIBLE = np.float32(-1e30)
_FLOOR = np.float32(-1e29)


@numba.njit(fastmath=True, inline="always")
def _log_add(a: float, b: float) -> float:
    if a < b:
        a, b = b, a
    if b <= _FLOOR:
        return a
    return a + math.log1p(math.exp(b - a))


@numba.njit(fastmath=True, cache=True)
def _forward(label: Array, blank: Array, label_steps: Array, blank_steps: Array) -> Array:
    """Log-probability ``[T + 1, U + 1]`` of reaching each point of the lattice."""
    end, count = blank.shape[0], blank.shape[1] - 1
    alpha = np.full((end + 1, count + 1), _IMPOSSIBLE, np.float32)
    alpha[0, 0] = 0.0
    for t in range(end):
        for u in range(count + 1):
            here = alpha[t, u]
            if here <= _FLOOR:
                continue
            for n in range(len(blank_steps)):
                to = t + blank_steps[n]
                if to < end or (to == end and u == count):
                    alpha[to, u] = _log_add(alpha[to, u], here + blank[t, u, n])
            for n in range(len(label_steps)):
                to = t + label_steps[n]
                if u < count and to < end:
                    alpha[to, u + 1] = _log_add(alpha[to, u + 1], here + label[t, u, n])
    return alpha


@numba.njit(fastmath=True, cache=True)
def _forward_backward(
    moves: tuple[Array, Array], steps: tuple[Array, Array], grads: tuple[Array, Array]
) -> float:
    """Return the negative log-likelihood of one row, and add its gradients to ``grads``.

    ``moves``, label ``[T, U, D]`` and blank ``[T, U + 1, E]``, are log-probabilities of moving from frame
    ``t`` with ``u`` tokens written, by each of ``steps``, label ``[D]`` and blank ``[E]``; the latter are
    at least 1.  A path ends when a blank reaches frame ``T`` exactly, with all tokens written.
    """
    (label, blank), (label_steps, blank_steps), (label_grad, blank_grad) = moves, steps, grads
    end, count = blank.shape[0], blank.shape[1] - 1
    alpha = _forward(label, blank, label_steps, blank_steps)
    total = alpha[end, count]
    if total <= _FLOOR:
        return -total
    beta = np.full((end + 1, count + 1), _IMPOSSIBLE, np.float32)
    beta[end, count] = 0.0
    for t in range(end - 1, -1, -1):
        for u in range(count, -1, -1):
            for n in range(len(blank_steps)):
                to = t + blank_steps[n]
                if to < end or (to == end and u == count):
                    path = blank[t, u, n] + beta[to, u]
                    beta[t, u] = _log_add(beta[t, u], path)
                    blank_grad[t, u, n] -= math.exp(min(alpha[t, u] + path - total, 0.0))
            for n in range(len(label_steps)):
                to = t + label_steps[n]
                if u < count and to < end:
                    path = label[t, u, n] + beta[to, u + 1]
                    beta[t, u] = _log_add(beta[t, u], path)
                    label_grad[t, u, n] -= math.exp(min(alpha[t, u] + path - total, 0.0))
    return -total


class _Lattice(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        label: torch.Tensor,
        blank: torch.Tensor,
        sizes: torch.Tensor,
        steps: tuple[Sequence[int], Sequence[int]],
    ) -> torch.Tensor:
        """Loss ``[B]``; ``sizes`` i64 ``[B, 2]`` has the frames and tokens of each row."""
        label_steps, blank_steps = map(np.asarray, steps)
        nll = torch.zeros(len(sizes))
        label_grad, blank_grad = torch.zeros_like(label), torch.zeros_like(blank)
        for row, (end, count) in enumerate(sizes.tolist()):
            nll[row] = _forward_backward(
                (label[row, :end, :count].detach().numpy(), blank[row, :end, : count + 1].detach().numpy()),
                (label_steps, blank_steps),
                (label_grad[row, :end, :count].numpy(), blank_grad[row, :end, : count + 1].numpy()),
            )
        ctx.save_for_backward(label_grad, blank_grad)
        return nll

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        label_grad, blank_grad = ctx.saved_tensors
        scale = grads[0][:, None, None, None]
        return label_grad * scale, blank_grad * scale, None, None


class _Urged(torch.autograd.Function):
    """Pass values on, and let their gradient count ``1 + urge`` times."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, urge: float) -> torch.Tensor:
        ctx.urge = urge
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0] * (1 + ctx.urge), None


def tdt_loss(
    logits: torch.Tensor,
    targets: torch.Tensor,
    frames: torch.Tensor,
    tokens: torch.Tensor,
    *,
    durations: Sequence[int],
    sigma: float = 0.0,
) -> torch.Tensor:
    """Negative log-likelihood of each row under a token-and-duration transducer.

    Args:
        logits: f32 ``[B, T, U + 1, V + 1 + D]`` from the joint network: tokens, blank last, then durations.
        targets: i64 ``[B, U]``, padded with any token.
        frames: i64 ``[B]``, encoder frames of each row.
        tokens: i64 ``[B]``, target tokens of each row; may be 0.
        durations: the ``D`` durations in frames, in rising order; a blank never takes duration 0.
        sigma: Logit under-normalisation, which makes every emission a little less likely and so
            favours long durations.

    Returns:
        f32 ``[B]``, in nats.
    """
    count = len(durations)
    token_log_probs = torch.log_softmax(logits[..., :-count], -1) - sigma
    duration_log_probs = torch.log_softmax(logits[..., -count:], -1)
    label = _of_targets(token_log_probs, targets) + duration_log_probs[:, :, :-1]
    moves = tuple(duration for duration in durations if duration > 0)
    blank = token_log_probs[..., -1:] + duration_log_probs[..., count - len(moves) :]
    loss: torch.Tensor = _Lattice.apply(
        label, blank, torch.stack((frames, tokens), 1), (tuple(durations), moves)
    )
    return loss


def rnnt_loss(
    logits: torch.Tensor,
    targets: torch.Tensor,
    frames: torch.Tensor,
    tokens: torch.Tensor,
    *,
    fast_emit: float = 0.0,
) -> torch.Tensor:
    """Negative log-likelihood of each row under an RNN transducer: tokens stay in a frame, blank leaves it.

    Args:
        logits: f32 ``[B, T, U + 1, V + 1]`` from the joint network, blank last.
        targets: i64 ``[B, U]``, padded with any token.
        frames: i64 ``[B]``, encoder frames of each row.
        tokens: i64 ``[B]``, target tokens of each row; may be 0.
        fast_emit: How much more the gradient of a token counts than that of blank, so that tokens come
            earlier (https://arxiv.org/abs/2010.11148).

    Returns:
        f32 ``[B]``, in nats.
    """
    log_probs = torch.log_softmax(logits, -1)
    label = _Urged.apply(_of_targets(log_probs, targets), fast_emit)
    loss: torch.Tensor = _Lattice.apply(
        label, log_probs[..., -1:], torch.stack((frames, tokens), 1), ((0,), (1,))
    )
    return loss


def _of_targets(log_probs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """``[B, T, U, 1]``: of all tokens, the one that comes next at each point of the lattice."""
    index = targets[:, None, :, None].expand(-1, log_probs.shape[1], -1, 1)
    return log_probs[:, :, :-1].gather(3, index)
