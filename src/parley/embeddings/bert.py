"""BERT encoders as ONNX graphs whose weights stay in the published ``model.safetensors``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from parley.embeddings.files import WEIGHTS_FILE
from parley.errors import ModelLoadingError
from parley.runtime.onnx_file import MICROSOFT, Node, OnnxModel, PartInput, make_node

IDS, POSITIONS, LENGTHS, HIDDEN = "ids", "positions", "lengths", "hidden"
"""Inputs and output of the graph; see :func:`make_graph`."""
_INT32 = 6
_MOST_HEADER = 16 << 20


class BertConfig(msgspec.Struct, frozen=True):
    """What is read of a ``config.json``."""

    model_type: Literal["bert"]
    hidden_act: Literal["gelu"]
    hidden_size: int
    num_attention_heads: int
    num_hidden_layers: int
    max_position_embeddings: int
    layer_norm_eps: float
    position_embedding_type: Literal["absolute"] = "absolute"


class _Stored(msgspec.Struct, frozen=True):
    """A tensor in the header of a safetensors file."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]
    """From the end of the header, in bytes."""


def make_graph(folder: Path, config: BertConfig) -> bytes:
    """An ONNX model, to be loaded from ``folder``, that reads its weights from ``model.safetensors``.

    Inputs: ``ids`` i64 ``[B, T]``, tokens with padding behind them; ``positions`` i64 ``[T]``, the numbers
    from 0; ``lengths`` i64 ``[B]``, tokens of each row. Output: ``hidden`` f32 ``[B * T, hidden_size]``;
    rows of padding have no meaning.

    Raises:
        ModelLoadingError: the file is no such encoder in single precision.
    """
    model = OnnxModel.empty()
    for name, tensor, start in _read_header(folder / WEIGHTS_FILE):
        if tensor.dtype == "F32":
            begin, end = tensor.data_offsets
            model.add_stored(name, tensor.shape, WEIGHTS_FILE, start + begin, end - begin)
    model.add_constant("first", np.array(0, np.int64))
    model.add_constant("flat", np.array([-1, config.hidden_size], np.int64))
    model.nodes = [*_embed(config)]
    for layer in range(config.num_hidden_layers):
        model.nodes += _attend(layer, config)
    model.nodes.append(make_node("Identity", [f"hidden.{config.num_hidden_layers}"], [HIDDEN]))
    inputs = [PartInput(IDS, 2, "i64"), PartInput(POSITIONS, 1, "i64"), PartInput(LENGTHS, 1, "i64")]
    return model.part(inputs, [HIDDEN])


def _embed(config: BertConfig) -> Sequence[Node]:
    weights = "embeddings.{}_embeddings.weight"
    norm = ["embeddings.LayerNorm.weight", "embeddings.LayerNorm.bias"]
    return [
        make_node("Gather", [weights.format("word"), IDS], ["words"]),
        make_node("Gather", [weights.format("position"), POSITIONS], ["places"]),
        make_node("Gather", [weights.format("token_type"), "first"], ["type"]),
        make_node("Add", ["places", "type"], ["context"]),
        make_node("Add", ["words", "context"], ["sum"]),
        make_node("LayerNormalization", ["sum", *norm], ["normed"], epsilon=config.layer_norm_eps),
        make_node("Shape", ["normed"], ["rows"]),
        make_node("Reshape", ["normed", "flat"], ["hidden.0"]),
        make_node("Cast", [LENGTHS], ["mask"], to=_INT32),
    ]


def _attend(layer: int, config: BertConfig) -> Sequence[Node]:
    """One layer, from ``hidden.LAYER`` to the next."""
    before, after, prefix = f"hidden.{layer}", f"hidden.{layer + 1}", f"encoder.layer.{layer}."

    def linear(name: str, read: str) -> Node:
        weights = [f"{prefix}{name}.weight", f"{prefix}{name}.bias"]
        return make_node("Gemm", [read, *weights], [f"{prefix}{name}"], transB=1)

    def add_and_norm(name: str, read: str, write: str) -> Node:
        parts = [f"{prefix}{name}.{part}" for part in ("dense", "LayerNorm.weight", "LayerNorm.bias")]
        return make_node(
            "SkipLayerNormalization", [read, *parts], [write], domain=MICROSOFT, epsilon=config.layer_norm_eps
        )

    heads = [f"attention.self.{part}" for part in ("query", "key", "value")]
    rows = [f"{prefix}{name}.rows" for name in heads]
    attended, middle = f"{prefix}attended", f"{prefix}middle"
    return [
        *(linear(name, before) for name in heads),
        *(
            make_node("Reshape", [f"{prefix}{name}", "rows"], [row])
            for name, row in zip(heads, rows, strict=True)
        ),
        make_node(
            "MultiHeadAttention",
            [*rows, "", "mask"],
            [attended],
            domain=MICROSOFT,
            num_heads=config.num_attention_heads,
        ),
        make_node("Reshape", [attended, "flat"], [f"{attended}.flat"]),
        linear("attention.output.dense", f"{attended}.flat"),
        add_and_norm("attention.output", before, middle),
        linear("intermediate.dense", middle),
        make_node("Gelu", [f"{prefix}intermediate.dense"], [f"{prefix}gelu"]),
        linear("output.dense", f"{prefix}gelu"),
        add_and_norm("output", middle, after),
    ]


def _read_header(path: Path) -> Sequence[tuple[str, _Stored, int]]:
    """The tensors of a safetensors file: name, description, and where the data of all begin (bytes)."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            raw = file.read(min(size, _MOST_HEADER))
        tensors = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        return [
            (name, msgspec.json.decode(tensor, type=_Stored), 8 + size)
            for name, tensor in tensors.items()
            if name != "__metadata__"
        ]
    except (OSError, ValueError) as error:  # of msgspec too
        raise ModelLoadingError(f"{path} is not a safetensors file: {error}") from error
