"""The network: int8 matrices with a scale for each output channel, in the format compressed-tensors.

Activations become int8 while the network runs, with a scale for each token. The embedding, which is only
looked up, stays bfloat16. A low-rank adapter is merged into the matrices before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from comparison import ExportError, check, note, relative_difference
from qwen_gguf.source import Shape, Source

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_LARGEST = 127
_FAR = 0.05
"""Relative difference from which on a matrix is no longer what was published. Rounding costs 0.01 to 0.03."""
_NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
_MATRICES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_DOWN = re.compile(r"model\.layers\.(\d+)\.mlp\.down_proj")
"""The last matrix of a layer."""
_BIASED = ("attn_q", "attn_k", "attn_v")


def factor_names(matrix: str) -> tuple[str, str]:
    """What the factors of a matrix are called: ``[rank, in]`` and ``[out, rank]``."""
    return f"base_model.model.{matrix}.lora_A.weight", f"base_model.model.{matrix}.lora_B.weight"


class Adapter:
    """Two factors for some of the matrices.

    Raises:
        ExportError: it is not an adapter that can be merged.
    """

    def __init__(self, folder: Path) -> None:
        try:
            config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
            self._scale = float(config["lora_alpha"]) / float(config["r"])
            kind = config["peft_type"]
            self._factors = load_file(folder / WEIGHTS)
        except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError, SafetensorError) as error:
            raise ExportError(f"{folder} is not an adapter: {error}") from error
        if kind != "LORA" or config.get("use_rslora") or config.get("use_dora"):
            raise ExportError(f"{folder} is an adapter of a kind that cannot be merged: {kind}")
        self._folder = folder
        self._left = set(self._factors)

    def merged(self, name: str, matrix: Tensor) -> Tensor:
        """A matrix f32 ``[out, in]`` with what the adapter adds to it.

        Raises:
            ExportError: the factors are of another shape, or the sum has values that are no numbers.
        """
        down, up = factor_names(name)
        if not {down, up} <= self._factors.keys():
            return matrix
        first, second = self._factors[down].float(), self._factors[up].float()
        if (second.shape[0], first.shape[1]) != tuple(matrix.shape) or first.shape[0] != second.shape[1]:
            raise ExportError(f"{self._folder} does not fit: {name} is {tuple(matrix.shape)} in the model")
        self._left -= {down, up}
        merged = matrix + self._scale * (second @ first)
        if not bool(torch.isfinite(merged).all()):
            raise ExportError(f"{self._folder} makes {name} hold values that are no numbers")
        return merged

    def check_used(self) -> None:
        """Make sure that nothing was left over.

        Raises:
            ExportError: it has factors for matrices that the model does not have.
        """
        if self._left:
            raise ExportError(f"{self._folder} is of another model: there is no {min(self._left)}")


def write(source: Source, rows: Sequence[int], folder: Path, adapter: Adapter | None) -> None:
    """Write ``model.safetensors``.

    Args:
        source: the published file.
        rows: of the embedding and the output head: the old id of each new one.
        folder: to write into.
        adapter: is added to the matrices before they are rounded; None: they stay as published.

    Raises:
        ExportError: a tensor is missing, has another shape, or cannot be written as int8.
    """
    written: dict[str, Tensor] = {}
    worst = (0.0, "")
    layers = source.shape().layers
    for name, published in tensors(source, rows):
        owner = name.removesuffix(".weight")
        if published.ndim == 1 or owner == "model.embed_tokens":
            written[name] = published.to(torch.bfloat16)
            continue
        matrix = adapter.merged(owner, published) if adapter else published
        weight, scale = to_int8(matrix)
        worst = max(worst, (relative_difference(weight * scale, matrix), owner))
        written[name], written[f"{owner}.weight_scale"] = weight, scale
        layer = _DOWN.fullmatch(owner)
        if layer and ((done := int(layer[1]) + 1) % 8 == 0 or done == layers):
            note(f"{done} of {layers} layers")
    if adapter:
        adapter.check_used()
    error, owner = worst
    check("the weights as int8", "what they are made of", {owner: error}, {owner: _FAR})
    note("writing the weights")
    path = folder / "model.safetensors"
    save_file(written, path, metadata={"format": "pt"})
    path.chmod(0o644)  # as the other files: the server may run as another user


def tensors(source: Source, rows: Sequence[int]) -> Iterator[tuple[str, Tensor]]:
    """All tensors f32 under the names that Hugging Face's Qwen2 has, one after the other.

    Args:
        source: the published file.
        rows: of the embedding and the output head: the old id of each new one.

    Raises:
        ExportError: a tensor is missing, or has another shape.
    """
    shape = source.shape()
    sizes = matrix_sizes(shape)
    for layer in range(shape.layers):
        theirs, ours = f"blk.{layer}", f"model.layers.{layer}"
        for name, norm in _NORMS.items():
            yield f"{ours}.{norm}.weight", _read(source, f"{theirs}.{name}.weight", (shape.hidden,))
        for name in _BIASED:
            yield f"{ours}.{_MATRICES[name]}.bias", _read(source, f"{theirs}.{name}.bias", sizes[name][:1])
        for name, matrix in _MATRICES.items():
            yield f"{ours}.{matrix}.weight", _read(source, f"{theirs}.{name}.weight", sizes[name])
    yield "model.norm.weight", _read(source, "output_norm.weight", (shape.hidden,))
    table = (len(rows), shape.hidden)
    yield "model.embed_tokens.weight", _read(source, "token_embd.weight", table, rows)
    head = "output.weight" if source.has("output.weight") else "token_embd.weight"
    yield "lm_head.weight", _read(source, head, table, rows)


def matrix_sizes(shape: Shape) -> dict[str, tuple[int, int]]:
    """Of a layer's matrices: output and input."""
    kv = shape.hidden // shape.heads * shape.kv_heads
    return {
        "attn_q": (shape.hidden, shape.hidden),
        "attn_k": (kv, shape.hidden),
        "attn_v": (kv, shape.hidden),
        "attn_output": (shape.hidden, shape.hidden),
        "ffn_gate": (shape.feed_forward, shape.hidden),
        "ffn_up": (shape.feed_forward, shape.hidden),
        "ffn_down": (shape.hidden, shape.feed_forward),
    }


def to_int8(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix as int8 ``[out, in]``, and the scale f32 ``[out, 1]`` of each output channel."""
    scale = (matrix.abs().amax(1, keepdim=True) / _LARGEST).clamp_min(1e-8)
    return torch.round(matrix / scale).clamp(-_LARGEST, _LARGEST).to(torch.int8), scale


def quantization_config() -> dict[str, Any]:
    """What ``config.json`` says about it."""
    weights = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False}
    activations = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
    group = {"weights": weights, "input_activations": activations, "format": "int-quantized"}
    return {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "global_compression_ratio": None,
        # The head is no Linear to vLLM.
        "config_groups": {
            "group_0": {"targets": ["Linear"], **group},
            "group_1": {"targets": ["re:.*lm_head"], **group},
        },
        "ignore": [],
    }


def _read(source: Source, name: str, size: tuple[int, ...], rows: Sequence[int] | None = None) -> Tensor:
    tensor = torch.from_numpy(source.tensor(name, rows))
    if tensor.shape != size:
        raise ExportError(f"{name} has the shape {tuple(tensor.shape)}, not {size}")
    if not bool(torch.isfinite(tensor).all()):
        raise ExportError(f"{name} holds values that are no numbers")
    return tensor
