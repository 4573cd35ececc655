"""The T3 of Chatterbox Turbo (a GPT-2) as a vLLM model. Imports vLLM.

No guidance and no speech positions: vLLM's own GPT-2 with speech tokens in place of words.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.models.gpt2 import GPT2Model

from parley.tts.t3.side_channel import PLACEHOLDERS


class ChatterboxT3Turbo(nn.Module):
    """What vLLM runs; its weights carry the names of the published checkpoint."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        if vllm_config.parallel_config.world_size != 1:
            raise ValueError("T3 runs on one device")
        vocabulary = config.t3_speech_vocabulary
        self.tfmr = GPT2Model(vllm_config=vllm_config, prefix=f"{prefix}.tfmr" if prefix else "tfmr")
        self.speech_head = ParallelLMHead(vocabulary, config.hidden_size, bias=True, prefix="speech_head")
        self.logits_processor = LogitsProcessor(vocabulary)

    def embed_input_ids(self, input_ids: Tensor, *_: Any, **__: Any) -> Tensor:
        """Embeddings of generated tokens, [N, width]."""
        return self.tfmr.wte(input_ids)  # type: ignore[no-any-return]

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: Tensor | None = None,
        **_: Any,
    ) -> Tensor:
        """Hidden states, [N, width]."""
        return self.tfmr(input_ids, positions, intermediate_tensors, inputs_embeds)  # type: ignore[no-any-return]

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """Logits, [N, vocabulary and placeholders]; the placeholders are never drawn."""
        logits = self.logits_processor(self.speech_head, hidden_states, self.speech_head.bias)
        return nn.functional.pad(logits, (0, PLACEHOLDERS), value=-torch.inf)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Take the tensors of a published checkpoint; returns the names of those that were set."""
        loaded: set[str] = set()
        transformer: list[tuple[str, Tensor]] = []
        for name, tensor in weights:
            if name == "speech_emb.weight":
                # In place of the words' embeddings; placeholders are never looked up.
                padding = tensor.new_zeros(PLACEHOLDERS, tensor.shape[1])
                transformer.append(("wte.weight", torch.cat([tensor, padding])))
            elif name.startswith("speech_head."):
                parameter: Any = self.get_parameter(name)
                parameter.weight_loader(parameter, tensor)
                loaded.add(name)
            elif name.startswith("tfmr.") and not name.startswith("tfmr.wte."):
                transformer.append((name.removeprefix("tfmr."), tensor))
        return loaded | {f"tfmr.{name}" for name in self.tfmr.load_weights(transformer)}
