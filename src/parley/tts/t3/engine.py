"""Requests for speech tokens in vLLM's terms. Imports vLLM."""

from __future__ import annotations

import dataclasses
from typing import Any

from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams

from parley.llm.engine import Progress
from parley.llm.vllm_types import read_output
from parley.tts.t3.request import TokenGeneration
from parley.tts.t3.vocabulary import DRAWING_KEY, END_OF_SPEECH


class SpeechTranslation:
    """:class:`parley.llm.engine.Translation` of requests for speech tokens.

    Args:
        guided: whether the model is not Turbo, whose tokens are drawn in an order of their own.
    """

    def __init__(self, *, guided: bool) -> None:
        self._guided = guided

    def prompt(self, request: TokenGeneration) -> Any:
        """The prompt, as embeddings; its ids are for the model alone."""
        prompt = request.prompt
        return {
            "prompt_embeds": prompt.embeddings,
            "prompt_token_ids": prompt.ids,
            "prompt_is_token_ids": [False] * len(prompt.ids),
        }

    def sampling(self, request: TokenGeneration) -> Any:
        """How tokens are drawn."""
        drawing = request.drawing
        common: dict[str, Any] = {
            "max_tokens": request.max_tokens,
            "stop_token_ids": [END_OF_SPEECH],
            "detokenize": False,
            "output_kind": RequestOutputKind.DELTA,
        }
        # A seed does not matter to a greedy request.
        if self._guided and (drawing.seed is None or not drawing.temperature):
            return SamplingParams(
                **common,
                temperature=drawing.temperature,
                top_p=drawing.top_p,
                top_k=drawing.top_k,
                min_p=drawing.min_p,
                repetition_penalty=drawing.repetition_penalty,
            )
        return SamplingParams(
            **common,
            # What is drawn with a seed is the best token after its noise.
            temperature=drawing.temperature if drawing.seed is None else 0.0,
            extra_args={DRAWING_KEY: dataclasses.asdict(drawing)},
        )

    def read(self, output: RequestOutput) -> Progress:
        """What one of vLLM's reports says."""
        return dataclasses.replace(read_output(output), token_ids=tuple(output.outputs[0].token_ids))
