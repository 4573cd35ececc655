"""T3 as vLLM models: a Llama (Original, Multilingual) and a GPT-2 (Turbo). Imports vLLM.

The weights have the names of the published checkpoints. Turbo has no guidance and no speech positions:
it is vLLM's own GPT-2 with speech tokens in place of words. In the others, guidance runs
the transformer twice, with and without the text, over the same generated tokens. Here one vLLM
request is both runs: a hidden state is the two halves side by side, the linear layers see them as two
rows, and attention as twice the heads, so that one KV cache, one batch and one scheduler serve both.
The guided combination is made on the last hidden states, which is the same as on the logits because
the output layer is linear and has no bias.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from parley.llm.vllm_api import (
    Attention,
    CacheConfig,
    GPT2Model,
    LlamaMLP,
    LogitsLayer,
    ParallelLMHead,
    QKVParallelLinear,
    RMSNorm,
    RowParallelLinear,
    SupportsMRoPE,
    VllmConfig,
    get_rope,
    support_torch_compile,
)
from parley_torch.tts.t3.request import (
    CONTEXT_BITS,
    MAX_CONTEXT,
    MAX_PROMPT,
    PLACEHOLDERS,
    PROMPT_BITS,
    WEIGHT_STEPS,
    read_prompt_ids,
)

# Tensors of the prompt encoder, which runs outside of vLLM.
_PROMPT_TENSORS = ("text_", "cond_enc.", "tfmr.embed_tokens.")
# Name in the checkpoint, vLLM's fused name, shard.
_FUSED = (
    (".q_proj", ".qkv_proj", "q"),
    (".k_proj", ".qkv_proj", "k"),
    (".v_proj", ".qkv_proj", "v"),
    (".gate_proj", ".gate_up_proj", 0),
    (".up_proj", ".gate_up_proj", 1),
)


class _Attention(nn.Module):
    """Attention of both halves: heads ``0..H-1`` are conditional, ``H..2H-1`` unconditional."""

    def __init__(self, config: Any, cache_config: CacheConfig | None, prefix: str) -> None:
        super().__init__()
        self._inner = config.t3_heads * config.head_dim
        self.qkv_proj = QKVParallelLinear(
            config.t3_width,
            config.head_dim,
            config.t3_heads,
            config.t3_heads,
            bias=False,
            prefix=f"{prefix}.qkv_proj",
        )
        self.o_proj = RowParallelLinear(self._inner, config.t3_width, bias=False, prefix=f"{prefix}.o_proj")
        # The M-RoPE section only serves to set the positions: the rotation is the plain one.
        rope = {name: value for name, value in config.rope_parameters.items() if name != "mrope_section"}
        self.rotary_emb = get_rope(config.head_dim, max_position=MAX_CONTEXT, rope_parameters=rope)
        self.attn = Attention(
            2 * config.t3_heads,
            config.head_dim,
            config.head_dim**-0.5,
            num_kv_heads=2 * config.t3_heads,
            cache_config=cache_config,
            prefix=f"{prefix}.attn",
        )

    def forward(self, positions: Tensor, rows: Tensor) -> Tensor:
        """``positions`` [N], ``rows`` [2N, width] → [2N, width]."""
        qkv, _ = self.qkv_proj(rows)
        q, k, v = (part.reshape(-1, 2 * self._inner) for part in qkv.chunk(3, -1))
        q, k = self.rotary_emb(positions, q, k)
        mixed, _ = self.o_proj(self.attn(q, k, v).reshape(-1, self._inner))
        return mixed  # type: ignore[no-any-return]


class _Layer(nn.Module):
    def __init__(self, config: Any, cache_config: CacheConfig | None, prefix: str) -> None:
        super().__init__()
        self.self_attn = _Attention(config, cache_config, f"{prefix}.self_attn")
        self.mlp = LlamaMLP(config.t3_width, config.intermediate_size, "silu", prefix=f"{prefix}.mlp")
        self.input_layernorm = RMSNorm(config.t3_width, eps=config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.t3_width, eps=config.rms_norm_eps)

    def forward(self, positions: Tensor, rows: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        if residual is None:
            residual, rows = rows, self.input_layernorm(rows)
        else:
            rows, residual = self.input_layernorm(rows, residual)
        rows, residual = self.post_attention_layernorm(self.self_attn(positions, rows), residual)
        return self.mlp(rows), residual


@support_torch_compile(dynamic_arg_dims={"positions": -1, "inputs_embeds": 0})
class _Transformer(nn.Module):
    """Everything between embeddings and guided hidden states.

    All of it is inside the compiled module because a graph that vLLM records reads its inputs at the
    addresses they had then: only vLLM's own tensors keep theirs.
    """

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        self._width = config.t3_width
        self.speech_pos_emb = nn.Embedding(config.t3_speech_positions, config.t3_width)
        self.layers = nn.ModuleList(
            _Layer(config, vllm_config.cache_config, f"{prefix}.layers.{number}")
            for number in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(config.t3_width, eps=config.rms_norm_eps)

    def forward(self, positions: Tensor, inputs_embeds: Tensor) -> Tensor:
        """``positions`` [3, N], packed, ``inputs_embeds`` [N, 2 * width] → [N, width]."""
        packed = positions[0]
        context = packed & (MAX_CONTEXT - 1)
        prompt_length = (packed >> CONTEXT_BITS) & MAX_PROMPT
        hundredths = packed >> (CONTEXT_BITS + PROMPT_BITS)

        # The first generated token follows a start token at position 0.
        speech = context - prompt_length + 1
        table = self.speech_pos_emb(speech.clamp(0, self.speech_pos_emb.num_embeddings - 1))
        table = table * (speech > 0).unsqueeze(-1).to(table.dtype)
        hidden = inputs_embeds + torch.cat([table, table], -1)

        rows = hidden.reshape(-1, self._width)  # 2n: conditional, 2n + 1: unconditional
        residual: Tensor | None = None
        for layer in self.layers:
            rows, residual = layer(context, rows, residual)
        normed: Tensor
        normed, _ = self.norm(rows, residual)
        conditional, unconditional = normed.float().reshape(-1, 2, self._width).unbind(1)
        weight = (hundredths.float() / WEIGHT_STEPS).unsqueeze(-1)
        guided: Tensor = conditional + weight * (conditional - unconditional)
        return guided.to(inputs_embeds.dtype)


class ChatterboxT3(nn.Module, SupportsMRoPE):  # type: ignore[misc]
    """Original and Multilingual."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        if vllm_config.parallel_config.world_size != 1:
            raise ValueError("T3 runs on one device")
        if vllm_config.model_config.max_model_len > MAX_CONTEXT:
            raise ValueError(f"T3 takes a max_model_len of {MAX_CONTEXT} at most")
        self._width = config.t3_width
        self._vocabulary = config.t3_speech_vocabulary
        self.tfmr = _Transformer(vllm_config=vllm_config, prefix=f"{prefix}.tfmr" if prefix else "tfmr")
        self.speech_emb = nn.Embedding(self._vocabulary, self._width)
        self.speech_head = ParallelLMHead(self._vocabulary, self._width, prefix="speech_head")
        self.logits_processor = LogitsLayer(self._vocabulary)

    def get_mrope_input_positions(
        self, input_tokens: list[int], mm_features: list[Any]
    ) -> tuple[Tensor, int]:
        """Positions of a prompt, [3, its length], with the request's settings packed into them."""
        del mm_features
        base = read_prompt_ids(input_tokens, self._vocabulary).offset()
        return (torch.arange(len(input_tokens)) + base).expand(3, -1).contiguous(), base

    def embed_input_ids(self, input_ids: Tensor, *_: Any, **__: Any) -> Tensor:
        """Embeddings of generated tokens, the same in both halves, without their positions."""
        one = self.speech_emb(input_ids.clamp(max=self._vocabulary - 1))
        return torch.cat([one, one], -1)

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: Tensor | None = None,
        **_: Any,
    ) -> Tensor:
        """Hidden states after guidance, [N, width].

        ``positions`` is [3, N], packed, with three equal rows. ``inputs_embeds`` [N, 2 * width] of a prompt
        includes the positions.
        """
        del intermediate_tensors
        if inputs_embeds is None:
            assert input_ids is not None
            inputs_embeds = self.embed_input_ids(input_ids)
        return self.tfmr(positions, inputs_embeds)  # type: ignore[no-any-return]

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """Logits, [N, vocabulary and placeholders]; the placeholders are never sampled."""
        logits: Tensor = self.logits_processor(self.speech_head, hidden_states)
        return nn.functional.pad(logits, (0, PLACEHOLDERS), value=-torch.inf)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Load a published checkpoint; returns the names of the parameters that were set."""
        parameters: dict[str, Any] = dict(self.named_parameters())
        loaded: set[str] = set()
        for published, tensor in weights:
            if published.startswith(_PROMPT_TENSORS):
                continue
            name = published.replace("speech_pos_emb.emb.", "tfmr.speech_pos_emb.")
            for part, fused, shard in _FUSED:
                if part in name:
                    name = name.replace(part, fused)
                    parameters[name].weight_loader(parameters[name], tensor, shard)
                    break
            else:
                parameter = parameters[name]
                load = getattr(parameter, "weight_loader", None)
                if load is None:
                    parameter.data.copy_(tensor)
                else:
                    load(parameter, tensor)
            loaded.add(name)
        return loaded


class ChatterboxT3Turbo(nn.Module):
    """Turbo."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        if vllm_config.parallel_config.world_size != 1:
            raise ValueError("T3 runs on one device")
        vocabulary = config.t3_speech_vocabulary
        self.tfmr = GPT2Model(vllm_config=vllm_config, prefix=f"{prefix}.tfmr" if prefix else "tfmr")
        self.speech_head = ParallelLMHead(vocabulary, config.hidden_size, bias=True, prefix="speech_head")
        self.logits_processor = LogitsLayer(vocabulary)

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
        """Logits, [N, vocabulary and placeholders]; the placeholders are never sampled."""
        logits = self.logits_processor(self.speech_head, hidden_states, self.speech_head.bias)
        return nn.functional.pad(logits, (0, PLACEHOLDERS), value=-torch.inf)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Load a published checkpoint; returns the names of the parameters that were set."""
        loaded: set[str] = set()
        transformer: list[tuple[str, Tensor]] = []
        for name, tensor in weights:
            if name == "speech_emb.weight":
                # In place of the words' embeddings; the rows of placeholders are never used.
                padding = tensor.new_zeros(PLACEHOLDERS, tensor.shape[1])
                transformer.append(("wte.weight", torch.cat([tensor, padding])))
            elif name.startswith("speech_head."):
                parameter: Any = self.get_parameter(name)
                parameter.weight_loader(parameter, tensor)
                loaded.add(name)
            elif name.startswith("tfmr.") and not name.startswith("tfmr.wte."):
                transformer.append((name.removeprefix("tfmr."), tensor))
        return loaded | {f"tfmr.{name}" for name in self.tfmr.load_weights(transformer)}
