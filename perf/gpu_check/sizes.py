"""Published sizes of the models on vLLM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

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


def qwen3_cached(config: Mapping[str, Any]) -> int:
    """Values that Qwen3 keeps of a token: keys and values of all layers."""
    return int(2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"])


def t3_cached(width: int) -> int:
    """The same of T3, whose guidance speaks with the text and without it."""
    return 2 * _T3_LAYERS * width * _T3_STREAMS


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
