"""A small decoder of Qwen3's or Llama's kind as one of a published size; see the package.

Heads that are added have no values. The entries of a head that grows keep the frequencies of their rotation.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from widened.padding import pad_inputs, pad_outputs, place, repeat

_SILENT = ("self_attn.o_proj.weight", "mlp.down_proj.weight")
_COPIED = ("chat_template.jinja", "generation_config.json", "tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True)
class DecoderSize:
    """Sizes of a decoder's layers."""

    width: int
    layers: int
    heads: int
    kv_heads: int
    head: int
    inner: int


QWEN3_4B = DecoderSize(width=2560, layers=36, heads=32, kv_heads=8, head=128, inner=9728)
T3 = DecoderSize(width=1024, layers=30, heads=16, kv_heads=16, head=64, inner=4096)


def widen_qwen3(source: Path, folder: Path, size: DecoderSize = QWEN3_4B) -> Path:
    """Write a larger Qwen3 that answers what a small one answers, with the small one's tokenizer.

    Args:
        source: the small one, in one file, whose embeddings are its last layer, too.
        folder: made if need be.
        size: what it grows to; its vocabulary does not.

    Returns:
        ``folder``.
    """
    config = json.loads((source / "config.json").read_text())
    assert config["tie_word_embeddings"], "the last layer is the embeddings"
    small = DecoderSize(
        config["hidden_size"],
        config["num_hidden_layers"],
        config["num_attention_heads"],
        config["num_key_value_heads"],
        config["head_dim"],
        config["intermediate_size"],
    )
    weights = load_file(source / "model.safetensors")
    copies = size.width // small.width
    found = widen_layers(weights, "model.layers.", small, size)
    found["model.embed_tokens.weight"] = repeat(weights["model.embed_tokens.weight"].T, copies).T
    # The last product sums over all copies.
    found["model.norm.weight"] = repeat(weights["model.norm.weight"], copies) / copies
    config |= {
        "dtype": "bfloat16",
        "hidden_size": size.width,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "head_dim": size.head,
        "intermediate_size": size.inner,
        "layer_types": ["full_attention"] * size.layers,
        "max_position_embeddings": 40_960,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for name in _COPIED:
        shutil.copy(source / name, folder / name)
    save_file(
        {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in found.items()},
        folder / "model.safetensors",
    )
    return folder


def widen_layers(
    weights: Mapping[str, Tensor], prefix: str, small: DecoderSize, size: DecoderSize
) -> dict[str, Tensor]:
    """The tensors of all layers, those that are added included."""
    pattern = re.compile(rf"{re.escape(prefix)}(\d+)\.(.+)")
    found: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if match := pattern.fullmatch(name):
            found[name] = _widen(match[2], tensor, small, size)
    last = {
        name.removeprefix(f"{prefix}{small.layers - 1}."): tensor
        for name, tensor in found.items()
        if name.startswith(f"{prefix}{small.layers - 1}.")
    }
    for number in range(small.layers, size.layers):
        for name, tensor in last.items():
            own = torch.zeros_like(tensor) if name in _SILENT else tensor.clone()
            found[f"{prefix}{number}.{name}"] = own
    return found


def _widen(name: str, tensor: Tensor, small: DecoderSize, size: DecoderSize) -> Tensor:
    copies = size.width // small.width
    if name.endswith(("q_norm.weight", "k_norm.weight")):
        # The mean square is over more entries, and scores are divided by the root of their number.
        grown = math.sqrt(size.head / small.head)
        factor = 1.0 if "q_norm" in name else 1.0 / grown
        return factor * place(tensor, _rotated(small, size), size.head, 0)
    if "layernorm" in name:
        return repeat(tensor, copies)
    if name.endswith("down_proj.weight"):
        return repeat(pad_inputs(tensor, size.inner), copies)
    if name.endswith("o_proj.weight"):
        return repeat(
            place(tensor, _entries(_queries(small, size), small, size), size.heads * size.head, 1), copies
        )
    reads = pad_inputs(tensor, size.width)
    if name.startswith("mlp."):
        return pad_outputs(reads, size.inner)
    heads = _queries(small, size) if "q_proj" in name else range(small.kv_heads)
    count = size.heads if "q_proj" in name else size.kv_heads
    return place(reads, _entries(heads, small, size), count * size.head, 0)


def _queries(small: DecoderSize, size: DecoderSize) -> list[int]:
    """Where the small decoder's query heads are, which follow the head of their keys."""
    each, wide = small.heads // small.kv_heads, size.heads // size.kv_heads
    return [head // each * wide + head % each for head in range(small.heads)]


def _entries(heads: Sequence[int], small: DecoderSize, size: DecoderSize) -> Tensor:
    """Where the entries of all heads are."""
    rotated = _rotated(small, size)
    return torch.cat([head * size.head + rotated for head in heads])


def _rotated(small: DecoderSize, size: DecoderSize) -> Tensor:
    """Where the entries of a head are: pairs keep the frequency of their rotation, their halves apart."""
    first = torch.arange(small.head // 2) * (size.head // small.head)
    return torch.cat([first, size.head // 2 + first])
