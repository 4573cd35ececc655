"""The sampling of speech tokens that vLLM's own sampler cannot do; imports PyTorch, not vLLM.

Two kinds of requests need it:

* those with a seed. vLLM's random generator for such a request has a state that depends on how the
  prompt was cut into pieces, and on a CPU its engine dies when such a prompt is cut at all. Here
  the noise of a token depends on the seed and the token's number alone, and the best token after
  noise is a sample from the distribution (Gumbel's trick).
* those to Turbo, which was published with the repetition penalty after the selection of likely
  tokens, where vLLM has it before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parley_torch.tts.t3.request import START_OF_SPEECH, TokenSampling


@dataclass(frozen=True)
class SamplingRow:
    """One request in a step."""

    sampling: TokenSampling
    generated: int
    """Number of tokens so far."""


def mark_tokens(ids: Tensor, counts: Tensor, vocabulary: int) -> Tensor:
    """Which tokens each row has, bool [rows, vocabulary].

    Args:
        ids: [rows, n], any integer type; what lies behind a row's count is ignored.
        counts: [rows].
        vocabulary: number of tokens.
    """
    columns = torch.arange(ids.shape[1], device=ids.device)
    index = torch.where(columns < counts.unsqueeze(-1), ids.long(), vocabulary)
    marked = torch.zeros(len(ids), vocabulary + 1, dtype=torch.bool, device=ids.device)
    return marked.scatter_(1, index, True)[:, :vocabulary]


def score_tokens(scores: Tensor, rows: Sequence[SamplingRow], seen: Tensor, *, turbo: bool) -> Tensor:
    """Scores whose best token, or whose distribution at the row's temperature, is the sample.

    Args:
        scores: logits [rows, vocabulary].
        rows: the settings of each.
        seen: the tokens that each has generated, bool [rows, vocabulary]; changed in place.
        turbo: whether the repetition penalty comes after the selection of likely tokens.
    """

    def column(*values: float) -> Tensor:
        return torch.tensor(values, dtype=scores.dtype, device=scores.device).unsqueeze(-1)

    settings = [row.sampling for row in rows]
    penalty = column(*(setting.repetition_penalty for setting in settings))
    # The start token counts: with Turbo only until there are others.
    starts = torch.tensor([not (turbo and row.generated) for row in rows], device=seen.device)
    seen[:, START_OF_SPEECH] |= starts
    # Greedy requests exclude nothing: their best token stays the same.
    warm = column(*(setting.temperature or 1.0 for setting in settings))
    if not turbo:
        scores = _penalize(scores, seen, penalty)
    out = _excluded(
        scores / warm,
        top_k=[setting.top_k if setting.temperature else 0 for setting in settings],
        top_p=column(*(setting.top_p if setting.temperature else 1.0 for setting in settings)),
        min_p=column(*(setting.min_p if setting.temperature else 0.0 for setting in settings)),
    )
    scores = scores.masked_fill(out, -torch.inf)
    if turbo:
        scores = _penalize(scores, seen, penalty)
    for number, row in enumerate(rows):
        setting = row.sampling
        if setting.seed is not None and setting.temperature:
            noise = torch.from_numpy(gumbel_noise(setting.seed, row.generated, scores.shape[1]))
            scores[number] = scores[number] / setting.temperature + noise.to(scores.device)
    return scores


def gumbel_noise(seed: int, step: int, size: int) -> NDArray[np.float32]:
    """Noise for token number ``step``, float32 [size], from Philox with the seed as its key."""
    numbers = np.random.Generator(np.random.Philox(key=seed, counter=[0, step, 0, 0]))
    noise: NDArray[np.float32] = -np.log(numbers.standard_exponential(size, np.float32))
    return noise


def _penalize(scores: Tensor, seen: Tensor, penalty: Tensor) -> Tensor:
    """Make each row's tokens of ``seen`` less likely."""
    return torch.where(seen, torch.where(scores < 0, scores * penalty, scores / penalty), scores)


def _excluded(scores: Tensor, *, top_k: list[int], top_p: Tensor, min_p: Tensor) -> Tensor:
    """Excluded tokens, [rows, vocabulary]: by min_p, then top_k, then top_p of the rest."""
    probabilities = scores.softmax(-1)
    out = probabilities < min_p * probabilities.amax(-1, keepdim=True)
    values, order = scores.masked_fill(out, -torch.inf).sort(descending=True)
    last = torch.tensor([min(k or values.shape[1], values.shape[1]) - 1 for k in top_k], device=scores.device)
    # Tokens as likely as the last one within top_k stay.
    values = values.masked_fill(values < values.gather(1, last.unsqueeze(-1)), -torch.inf)
    # A token goes if it and all less likely ones add up to at most 1 - top_p.
    tail = values.softmax(-1).flip(-1).cumsum(-1).flip(-1)
    excluded = (tail <= 1 - top_p) | values.isinf()
    excluded[:, 0] = False
    return excluded.scatter(1, order, excluded)
