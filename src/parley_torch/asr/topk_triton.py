"""One GPU kernel for the best classes of each row and their log probabilities.

A program reads its row once and keeps it in registers: no log-softmax is written to memory, which
for a vocabulary of 1,024 tokens and a beam of 4 would be 256 times the answer.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_MOST_CLASSES = 65_536
"""What one program can hold."""


# Without annotations of its tensors: the compiler takes ``Any`` for a global variable, and refuses it.
@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _kernel(  # type: ignore[no-untyped-def] # noqa: PLR0917 - a kernel's arguments have no names at its launch
    scores,  # noqa: ANN001
    bonus,  # noqa: ANN001
    values,  # noqa: ANN001
    ids,  # noqa: ANN001
    classes,  # noqa: ANN001
    scores_stride,  # noqa: ANN001
    bonus_stride,  # noqa: ANN001
    k: tl.constexpr,
    block: tl.constexpr,
    has_bonus: tl.constexpr,
) -> None:
    """Write the ``k`` best of one row: the highest, then the highest of the rest, and so on."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, block)
    inside = column < classes
    raw = tl.load(scores + row * scores_stride + column, mask=inside, other=float("-inf")).to(tl.float32)
    highest = tl.max(raw, axis=0)
    total = tl.log(tl.sum(tl.exp(raw - highest), axis=0)) + highest
    ranked = raw
    if has_bonus:
        ranked += tl.load(bonus + row * bonus_stride + column, mask=inside, other=0.0).to(tl.float32)
    for place in tl.static_range(k):
        best = tl.max(ranked, axis=0)
        # Of equal classes the first, as everywhere.
        at = tl.min(tl.where(ranked == best, column, block), axis=0)
        tl.store(values + row * k + place, best - total)
        tl.store(ids + row * k + place, at.to(tl.int64))
        ranked = tl.where(column == at, float("-inf"), ranked)


def top_k(
    scores: torch.Tensor, k: int, bonus: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`parley_torch.asr.topk.top_k`.

    Raises:
        ValueError: there are more classes than one program can hold.
    """
    rows, classes = scores.shape
    if classes > _MOST_CLASSES:
        raise ValueError(f"{classes} classes; at most {_MOST_CLASSES} are possible")
    scores = scores.contiguous()
    bonus = scores if bonus is None else bonus.contiguous()
    values = torch.empty((rows, k), dtype=torch.float32, device=scores.device)
    ids = torch.empty((rows, k), dtype=torch.int64, device=scores.device)
    if rows:
        _kernel[(rows,)](
            scores,
            bonus,
            values,
            ids,
            classes,
            scores.stride(0),
            bonus.stride(0),
            k=k,
            block=triton.next_power_of_2(classes),
            has_bonus=bonus is not scores,
        )
    return values, ids
