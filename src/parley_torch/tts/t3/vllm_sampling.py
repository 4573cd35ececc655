"""Requests for speech tokens in vLLM's terms, and what samples them in its two runners. Imports vLLM."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from parley.llm.engine import Progress
from parley.llm.vllm_api import (
    BatchLogitsProcessor,
    BatchUpdate,
    LogitsContext,
    LogitsProcRequestState,
    ModelRunner,
    MoveDirectionality,
    RequestOutput,
    RequestOutputKind,
    SamplingParams,
    SlotLogitsProcessor,
    VllmConfig,
    embedded_prompt,
)
from parley.llm.vllm_types import read_output
from parley_torch.tts.t3.request import END_OF_SPEECH, SAMPLING_KEY, TokenGeneration, TokenSampling
from parley_torch.tts.t3.sampling import SamplingRow, mark_tokens, score_tokens


class SpeechTranslation:
    """:class:`parley.llm.engine.Translation` of requests for speech tokens.

    ``guided`` is False for Turbo, which samples in an order of its own.
    """

    def __init__(self, *, guided: bool, runner: ModelRunner) -> None:
        self._guided = guided
        self._runner = runner

    def prompt(self, request: TokenGeneration) -> Any:
        """The prompt as embeddings; its ids carry settings to the model."""
        return embedded_prompt(request.prompt.embeddings, request.prompt.ids, self._runner)

    def sampling(self, request: TokenGeneration) -> Any:
        """``SamplingParams`` for vLLM's own sampler or for :mod:`parley_torch.tts.t3.sampling`."""
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


class SpeechTokenSampler(BatchLogitsProcessor):  # type: ignore[misc]
    """Changes the logits of the requests that need sampling of their own, in the runner V1."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        del is_pin_memory
        self._turbo = _is_turbo(vllm_config)
        self._device = device
        # By the place in the batch. The lists are the engine's own, and grow with each token.
        self._rows: dict[int, tuple[TokenSampling, list[int]]] = {}

    def is_argmax_invariant(self) -> bool:
        """False: penalties and noise change the best token."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow the requests through vLLM's batch."""
        if batch_update is None:
            return
        for index in batch_update.removed:
            self._rows.pop(index, None)
        for index, params, _, generated in batch_update.added:
            sampling = _read_sampling(params)
            self._put(index, None if sampling is None else (sampling, generated))
        for source, target, direction in batch_update.moved:
            moved, other = self._rows.pop(source, None), self._rows.pop(target, None)
            self._put(target, moved)
            if direction is MoveDirectionality.SWAP:
                self._put(source, other)

    def _put(self, index: int, row: tuple[TokenSampling, list[int]] | None) -> None:
        if row is None:
            self._rows.pop(index, None)
        else:
            self._rows[index] = row

    def apply(self, logits: Tensor) -> Tensor:
        """Change the logits of this step, [requests, vocabulary], in place."""
        if not self._rows:
            return logits
        rows = [SamplingRow(sampling, len(generated)) for sampling, generated in self._rows.values()]
        longest = max(row.generated for row in rows)
        ids = [generated + [0] * (longest - len(generated)) for _, generated in self._rows.values()]
        seen = mark_tokens(
            torch.tensor(ids, dtype=torch.long, device=self._device).reshape(len(rows), longest),
            torch.tensor([row.generated for row in rows], device=self._device),
            logits.shape[1],
        )
        places = torch.tensor(list(self._rows), device=self._device)
        logits[places] = score_tokens(logits[places], rows, seen, turbo=self._turbo)
        return logits


class SpeechTokenSlotSampler(SlotLogitsProcessor):  # type: ignore[misc]
    """The same in the runner V2, which keeps each request in a slot, with its tokens on the device."""

    def __init__(self, vllm_config: VllmConfig, req_states: LogitsProcRequestState) -> None:
        if vllm_config.speculative_config is not None:
            raise ValueError("T3 works without speculative decoding")  # it has several rows for a request
        self._turbo = _is_turbo(vllm_config)
        self._state = req_states
        self._samplings: dict[int, TokenSampling] = {}

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        """Take over a request's settings; returns whether its logits are to be changed."""
        sampling = _read_sampling(sampling_params)
        if sampling is None:
            self._samplings.pop(req_idx, None)  # of the slot's request before
            return False
        self._samplings[req_idx] = sampling
        return True

    def apply(self, logits: Tensor, ctx: LogitsContext) -> Tensor:
        """Change the logits of this step, float32 [requests, vocabulary], in place."""
        slots = [int(slot) for slot in ctx.idx_mapping_np]
        places = [place for place, slot in enumerate(slots) if slot in self._samplings]
        if not places:
            return logits
        slots = [slots[place] for place in places]
        begins = [int(self._state.prompt_len.np[slot]) for slot in slots]
        # A prompt that has more pieces to come has a row too, which is not used.
        counts = [
            max(0, int(ctx.seq_lens_upper_bound_np[place]) - begin)
            for place, begin in zip(places, begins, strict=True)
        ]
        device = logits.device
        slot_index = torch.tensor(slots, device=device).unsqueeze(-1)
        # Columns of the tokens after each prompt; those behind a row's count do not matter.
        columns = torch.tensor(begins, device=device).unsqueeze(-1) + torch.arange(max(counts), device=device)
        tokens = self._state.all_token_ids.gpu
        seen = mark_tokens(
            tokens[slot_index, columns.clamp(max=tokens.shape[1] - 1)],
            torch.tensor(counts, device=device),
            logits.shape[1],
        )
        rows = [SamplingRow(self._samplings[slot], count) for slot, count in zip(slots, counts, strict=True)]
        index = torch.tensor(places, device=device)
        logits[index] = score_tokens(logits[index], rows, seen, turbo=self._turbo)
        return logits


def _is_turbo(vllm_config: VllmConfig) -> bool:
    return "ChatterboxT3Turbo" in vllm_config.model_config.architectures


def _read_sampling(params: SamplingParams) -> TokenSampling | None:
    settings: dict[str, Any] | None = (params.extra_args or {}).get(SAMPLING_KEY)
    return None if settings is None else TokenSampling(**settings)
