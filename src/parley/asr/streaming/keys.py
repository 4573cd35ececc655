"""A streaming encoder that remembers keys and values.

NeMo's cache for attention holds what each layer's keys and values are computed from. A chunk computes them
anew for all frames of the past that it attends to: 70 at every chunk of one new frame. They depend on
nothing but their frame, so the same graph can keep them, with the same results.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from parley.errors import ModelLoadingError
from parley.runtime.onnx_file import Node, OnnxModel, PartInput, make_node

KEYS, VALUES = "cache_keys", "cache_values"
_PROJECTIONS = {KEYS: "linear_k", VALUES: "linear_v"}
_LAYERS = 1
"""Axis of the caches."""
_BEGIN, _END, _TIME, _EACH = (f"{KEYS}.{name}" for name in ("begin", "end", "axis", "each"))
_PAST_ALL = 2**31


def keep_keys(
    file: bytes, *, cache: tuple[int, ...], inputs: tuple[str, ...], outputs: tuple[str, ...]
) -> bytes:
    """Change an encoder so that it keeps keys and values.

    Its caches are ``cache_keys`` and ``cache_values`` then, f32 ``[B, layers, left, D]``, and the next ones
    ``cache_keys_next`` and ``cache_values_next``. They begin with zeros: what is not yet there is masked.

    Args:
        file: of the encoder; its weights may be elsewhere.
        cache: shape of one stream's cache in NeMo's form: layers, frames of the past, width.
        inputs: those that stay.
        outputs: those that stay.

    Returns:
        The changed file.

    Raises:
        ModelLoadingError: attention in this graph is not as NeMo exports it.
    """
    model = OnnxModel(file)
    layers, past, _ = cache
    new: dict[str, str] = {}  # the keys or values of a chunk by those of all frames
    kept: dict[str, str] = {}  # those of all frames by the cache that they begin with
    rewired: dict[str, Mapping[str, str]] = {}  # other inputs of a node by its first output
    makers = {name: node for node in model.nodes for name in node.outputs}
    for name, projection in _PROJECTIONS.items():
        for layer in range(layers):
            found = _find(makers, f"/layers.{layer}/self_attn/{projection}")
            rewired |= _only_chunk(makers, found)
            new[found] = f"{found}.new"
            kept[f"{name}.{layer}"] = found
    nodes = [*_split(layers)]
    for node in model.nodes:
        nodes.append(node.reading(rewired.get(node.outputs[0], {})).writing(new))
        nodes += [
            make_node("Concat", [before, new[found]], [found], axis=1)
            for before, found in kept.items()
            if found in node.outputs
        ]
    model.nodes = [*nodes, *_collect(kept, layers)]
    for constant, values in (
        (_BEGIN, [-past]),
        (_END, [_PAST_ALL]),
        (_TIME, [1]),
        (_EACH, [1] * layers),
    ):
        model.add_constant(constant, np.array(values, np.int64))
    caches = [PartInput(name, 4) for name in _PROJECTIONS]
    return model.part([*inputs, *caches], [*outputs, *(f"{name}_next" for name in _PROJECTIONS)])


def _find(makers: Mapping[str, Node], layer: str) -> str:
    """The keys or values of a layer, with their bias if they have one."""
    for name in (f"{layer}/Add_output_0", f"{layer}/MatMul_output_0"):
        if name in makers:
            return name
    raise ModelLoadingError(f"the encoder has no {layer}")


def _only_chunk(makers: Mapping[str, Node], name: str) -> dict[str, Mapping[str, str]]:
    """How ``name`` is computed of a chunk alone: other inputs of nodes, by their first output.

    The nodes between are those of a projection: they treat every frame in the same way.
    """
    changes: dict[str, Mapping[str, str]] = {}
    sources: set[str] = set()
    waiting, seen = [name], {name}
    while waiting:
        reader = makers.get(waiting.pop())
        if reader is None:
            continue  # a weight
        for source in reader.inputs:
            joined = makers.get(source)
            if joined is not None and joined.kind == "Concat":
                sources.add(source)
                changes[reader.outputs[0]] = {source: joined.inputs[-1]}
            elif source not in seen:
                seen.add(source)
                waiting.append(source)
    if len(sources) != 1 or len(makers[sources.pop()].inputs) != 2:
        raise ModelLoadingError(f"{name} of the encoder is not computed of a past and a chunk")
    return changes


def _split(layers: int) -> list[Node]:
    """The caches of single layers, ``[B, left, D]``."""
    nodes: list[Node] = []
    for name in _PROJECTIONS:
        parts = [f"{name}.{layer}" for layer in range(layers)]
        nodes.append(make_node("Split", [name, _EACH], [f"{part}.row" for part in parts], axis=_LAYERS))
        nodes += [make_node("Squeeze", [f"{part}.row", _TIME], [part]) for part in parts]
    return nodes


def _collect(kept: Mapping[str, str], layers: int) -> list[Node]:
    """The next caches: the latest keys and values of all layers."""
    nodes: list[Node] = []
    for before, found in kept.items():
        nodes.append(make_node("Slice", [found, _BEGIN, _END, _TIME], [f"{before}.last"]))
        nodes.append(make_node("Unsqueeze", [f"{before}.last", _TIME], [f"{before}.next"]))
    for name in _PROJECTIONS:
        rows = [f"{name}.{layer}.next" for layer in range(layers)]
        nodes.append(make_node("Concat", rows, [f"{name}_next"], axis=_LAYERS))
    return nodes
