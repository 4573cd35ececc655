"""Published sizes of the models on vLLM, and what one token costs them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from gpu_check.roofline import Work
from parley_torch.tts.t3.request import SPEAKER_EMBEDDING_SIZE

QWEN3_4B: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "attention_bias": False,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "max_position_embeddings": 40960,
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "vocab_size": 151936,
}
T3_WIDTH = 1024
T3_TEXTS = 704
_T3_LAYERS = 30
_T3_SPEECHES = 8194
_T3_STREAMS = 2
"""Guidance speaks with the text and without it."""


@dataclass(frozen=True)
class DecoderSizes:
    """What a decoder does for each token."""

    weights: int
    """Parameters that a token is multiplied with; tables that are only looked up are none."""
    cached: int
    """Values that are kept of a token: keys and values of all layers and streams."""
    attended: int
    """Multiplications with every token before, all layers and streams together."""
    streams: int = 1

    def step(self, requests: int, context: float, dtype: torch.dtype) -> Work:
        """One step of several requests, each with ``context`` tokens before."""
        multiplied = self.streams * self.weights + self.attended * context
        moved = self.weights + self.cached * context * requests
        return Work(2.0 * multiplied * requests, moved * dtype.itemsize)


def qwen3_sizes(config: Mapping[str, Any]) -> DecoderSizes:
    """Of a model of Qwen3's architecture."""
    width, layers, head = config["hidden_size"], config["num_hidden_layers"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    layer = width * (2 * queries + 2 * keys) + 3 * width * config["intermediate_size"]
    weights = layers * layer + width * config["vocab_size"]
    return DecoderSizes(weights, cached=2 * layers * keys, attended=2 * layers * queries)


def t3_sizes(width: int) -> DecoderSizes:
    """Of Chatterbox's T3, without what computes the prompt."""
    weights = sum(
        math.prod(shape)
        for name, shape in t3_shapes(width)
        if len(shape) == 2 and name.startswith(("tfmr.layers.", "speech_head."))
    )
    values = 2 * _T3_LAYERS * width * _T3_STREAMS
    return DecoderSizes(weights, cached=values, attended=values, streams=_T3_STREAMS)


def t3_shapes(width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Of the original T3, as ``t3_cfg.safetensors`` names them."""
    inner = 4 * width
    yield "tfmr.embed_tokens.weight", (8, width)
    for layer in (f"tfmr.layers.{number}" for number in range(_T3_LAYERS)):
        for part in ("q_proj", "k_proj", "v_proj", "o_proj"):
            yield f"{layer}.self_attn.{part}.weight", (width, width)
        yield f"{layer}.mlp.gate_proj.weight", (inner, width)
        yield f"{layer}.mlp.up_proj.weight", (inner, width)
        yield f"{layer}.mlp.down_proj.weight", (width, inner)
        yield f"{layer}.input_layernorm.weight", (width,)
        yield f"{layer}.post_attention_layernorm.weight", (width,)
    yield "tfmr.norm.weight", (width,)
    yield "text_emb.weight", (T3_TEXTS, width)
    yield "speech_emb.weight", (_T3_SPEECHES, width)
    yield "text_pos_emb.emb.weight", (2_050, width)
    yield "speech_pos_emb.emb.weight", (4_100, width)
    yield "text_head.weight", (T3_TEXTS, width)
    yield "speech_head.weight", (_T3_SPEECHES, width)
    yield "cond_enc.spkr_enc.weight", (width, SPEAKER_EMBEDDING_SIZE)
    yield "cond_enc.spkr_enc.bias", (width,)
    yield "cond_enc.emotion_adv_fc.weight", (width, 1)
    yield "cond_enc.perceiver.pre_attention_query", (1, 32, width)
    for part in ("norm", "to_q", "to_k", "to_v", "proj_out"):
        name = f"cond_enc.perceiver.attn.{part}"
        yield f"{name}.weight", (width,) if part == "norm" else (width, width)
        yield f"{name}.bias", (width,)
