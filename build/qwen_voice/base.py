"""The published model, as it is trained on."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from qwen_gguf import vocabulary, weights
from qwen_gguf.source import ConversionError, Source


def load_base(source: Source, tokens: Path) -> Qwen2ForCausalLM:
    """The network in bfloat16, with the vocabulary that is served.

    Args:
        source: the published file.
        tokens: folder that was made of it, with the tokenizer and the configuration.

    Raises:
        ConversionError: the folder has another vocabulary.
    """
    rows = vocabulary.choose(source.vocabulary(), english=True).rows
    config = Qwen2Config.from_pretrained(tokens, attn_implementation="sdpa")
    if config.vocab_size != len(rows):
        raise ConversionError(f"{tokens} has another vocabulary")
    with torch.device("meta"):
        model = Qwen2ForCausalLM(config)
    read = {name: tensor.to(torch.bfloat16) for name, tensor in weights.tensors(source, rows)}
    model.load_state_dict(read, assign=True)
    # The rotation table is no weight: it is computed, and on the device "meta" it was not.
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    return model
