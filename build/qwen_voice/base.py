"""The published model, as it is trained on."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

from qwen_gguf import vocabulary, weights
from qwen_gguf.source import ConversionError, Source


def load_base(source: Source, tokens: Path) -> Qwen2ForCausalLM:
    """The network in bfloat16, with the vocabulary that is served.

    Args:
        source: the published file.
        tokens: folder of the tokenizer that was made of it.

    Raises:
        ConversionError: the tokenizer was made of something else.
    """
    shape = source.shape()
    rows = vocabulary.choose(source.vocabulary(), english=True).rows
    if len(AutoTokenizer.from_pretrained(tokens)) != len(rows):
        raise ConversionError(f"{tokens} has another vocabulary")
    config = Qwen2Config(
        vocab_size=len(rows),
        hidden_size=shape.hidden,
        intermediate_size=shape.feed_forward,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.context,
        rms_norm_eps=shape.epsilon,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        tie_word_embeddings=False,
        attn_implementation="sdpa",
    )
    with torch.device("meta"):
        model = Qwen2ForCausalLM(config)
    read = {name: tensor.to(torch.bfloat16) for name, tensor in weights.tensors(source, rows)}
    model.load_state_dict(read, assign=True)
    # The rotation table is no weight: it is computed, and on the device "meta" it was not.
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    return model
