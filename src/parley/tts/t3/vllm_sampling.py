"""Requests for speech tokens in vLLM's terms, and the sampling that vLLM cannot do. Imports vLLM.

Two kinds of requests need sampling of their own:

* those with a seed. vLLM's random generator for such a request has a state that depends on how the
  prompt was cut into pieces, and on a CPU its engine dies when such a prompt is cut at all. Here
  the noise of a token depends on the seed and the token's number alone, and the best token after
  noise is a sample from the distribution (Gumbel's trick).
* those to Turbo, which was published with the repetition penalty after the selection of likely
  tokens, where vLLM has it before.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from vllm.config import VllmConfig
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality

from parley.llm.engine import Progress
from parley.llm.vllm_types import read_output
from parley.tts.t3.request import END_OF_SPEECH, SAMPLING_KEY, START_OF_SPEECH, TokenGeneration


class SpeechTranslation:
    """:class:`parley.llm.engine.Translation` of requests for speech tokens.

    ``guided`` is False for Turbo, which samples in an order of its own.
    """

    def __init__(self, *, guided: bool) -> None:
        self._guided = guided

    def prompt(self, request: TokenGeneration) -> Any:
        """The prompt as embeddings; its ids carry settings to the model."""
        prompt = request.prompt
        return {
            "prompt_embeds": prompt.embeddings,
            "prompt_token_ids": prompt.ids,
            "prompt_is_token_ids": [False] * len(prompt.ids),
        }

    def sampling(self, request: TokenGeneration) -> Any:
        """``SamplingParams`` for vLLM's own sampler or for :class:`SpeechTokenSampler`."""
        values = dataclasses.asdict(request.sampling)
        seed, temperature = request.sampling.seed, request.sampling.temperature
        common: dict[str, Any] = {
            "max_tokens": request.max_tokens,
            "stop_token_ids": [END_OF_SPEECH],
            "detokenize": False,
            "output_kind": RequestOutputKind.DELTA,
        }
        # A seed does not matter to a greedy request.
        if self._guided and (seed is None or not temperature):
            return SamplingParams(**common, **{**values, "seed": None})
        # With a seed, the sampled token is the best one after noise.
        common["temperature"] = temperature if seed is None else 0.0
        return SamplingParams(**common, extra_args={SAMPLING_KEY: values})

    def read(self, output: RequestOutput) -> Progress:
        """Read one of vLLM's reports."""
        return dataclasses.replace(read_output(output), token_ids=tuple(output.outputs[0].token_ids))


@dataclass
class _Row:
    """One request; the fields but the last are those of ``TokenSampling``."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    seed: int | None
    generated: list[int]
    """The engine's own list, which grows with each token."""


class SpeechTokenSampler(LogitsProcessor):  # type: ignore[misc]
    """Changes the logits of the requests that need sampling of their own."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        del is_pin_memory
        self._turbo = "ChatterboxT3Turbo" in vllm_config.model_config.architectures
        self._device = device
        self._rows: dict[int, _Row] = {}

    def is_argmax_invariant(self) -> bool:
        """False: penalties and noise change the best token."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow the requests through vLLM's batch."""
        if batch_update is None:
            return
        for index in batch_update.removed:
            self._rows.pop(index, None)
        for index, sampling, _, generated in batch_update.added:
            self._put(index, _row(sampling, generated))
        for source, target, direction in batch_update.moved:
            moved, other = self._rows.pop(source, None), self._rows.pop(target, None)
            self._put(target, moved)
            if direction is MoveDirectionality.SWAP:
                self._put(source, other)

    def _put(self, index: int, row: _Row | None) -> None:
        if row is None:
            self._rows.pop(index, None)
        else:
            self._rows[index] = row

    def apply(self, logits: Tensor) -> Tensor:
        """Change the logits of this step, [requests, vocabulary], in place."""
        if not self._rows:
            return logits
        rows = list(self._rows.values())
        places = torch.tensor(list(self._rows), device=self._device)
        logits[places] = self._scores(logits[places], rows)
        return logits

    def _scores(self, scores: Tensor, rows: list[_Row]) -> Tensor:
        def column(*values: float) -> Tensor:
            return torch.tensor(values, dtype=scores.dtype, device=self._device).unsqueeze(-1)

        penalty = column(*(row.repetition_penalty for row in rows))
        # Greedy requests exclude nothing: their best token stays the same.
        warm = column(*(row.temperature or 1.0 for row in rows))
        if not self._turbo:
            scores = _penalise(scores, [{START_OF_SPEECH, *row.generated} for row in rows], penalty)
        out = _excluded(
            scores / warm,
            top_k=[row.top_k if row.temperature else 0 for row in rows],
            top_p=column(*(row.top_p if row.temperature else 1.0 for row in rows)),
            min_p=column(*(row.min_p if row.temperature else 0.0 for row in rows)),
        )
        scores = scores.masked_fill(out, -torch.inf)
        if self._turbo:
            scores = _penalise(scores, [set(row.generated) or {START_OF_SPEECH} for row in rows], penalty)
        for number, row in enumerate(rows):
            if row.seed is not None and row.temperature:
                noise = torch.from_numpy(gumbel_noise(row.seed, len(row.generated), scores.shape[1]))
                scores[number] = scores[number] / row.temperature + noise.to(self._device)
        return scores


def gumbel_noise(seed: int, step: int, size: int) -> NDArray[np.float32]:
    """Noise for token number ``step``, float32 [size], from Philox with the seed as its key."""
    numbers = np.random.Generator(np.random.Philox(key=seed, counter=[0, step, 0, 0]))
    noise: NDArray[np.float32] = -np.log(numbers.standard_exponential(size, np.float32))
    return noise


def _row(sampling: SamplingParams, generated: list[int]) -> _Row | None:
    settings: dict[str, Any] | None = (sampling.extra_args or {}).get(SAMPLING_KEY)
    return None if settings is None else _Row(generated=generated, **settings)


def _penalise(scores: Tensor, seen: list[set[int]], penalty: Tensor) -> Tensor:
    """Make each row's tokens of ``seen`` less likely."""
    longest = max(map(len, seen))
    padded = [[*tokens, *[next(iter(tokens))] * (longest - len(tokens))] for tokens in seen]
    index = torch.tensor(padded, device=scores.device)
    found = scores.gather(1, index)
    return scores.scatter(1, index, torch.where(found < 0, found * penalty, found / penalty))


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
