"""The weights of an export as torch tensors, named as NeMo names its parameters.

They come from ``model.safetensors``, which ``build/torch_export.py`` writes, or else from the ONNX files
beside it. In these the exporter has renamed the matrices of products, but the name of a product's result
says which layer it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from parley.asr.checkpoint import WEIGHTS_FILE
from parley.asr.streaming.prompt_graph import read_prompt
from parley.errors import ModelLoadingError, WeightsNotFoundError
from parley.runtime.onnx_file import Node, OnnxModel

ENCODER, DECODER = "encoder.", ""
"""What the names of a part begin with; ``decoder.`` and ``joint.`` are NeMo's own."""
SHIFT, SCALE = "features.shift", "features.scale"
"""What is taken from features, and what they are divided by; most models have neither."""
POSITION_SCALE = "encoder.input_scale"
"""What the subsampled frames are multiplied by, in models that do so."""
_MODULE = re.compile(r"^/(?P<path>.+)/(?P<kind>[A-Za-z]+)_output_0$")
_TWICE = re.compile(r"\b(\w+)\.(?=\1\.\d)")
"""A layer of a sequence is named after the sequence, and again after itself."""
_LSTM_GATES = (0, 2, 3, 1)
"""ONNX has input, output, forget and cell; torch input, forget, cell and output."""


def read_weights(folder: Path, encoder: Path | None, decoder: Path) -> dict[str, Tensor]:
    """The weights of an export, on the CPU, in the precision in which they are stored.

    Args:
        folder: the export.
        encoder: its encoder as ONNX; of several look-aheads any; None: it is not wanted.
        decoder: its prediction and joint networks as ONNX.

    Raises:
        WeightsNotFoundError: the folder has neither :data:`WEIGHTS_FILE` nor the ONNX files.
        ModelLoadingError: a file cannot be read, or is quantised.
    """
    path = folder / WEIGHTS_FILE
    if path.is_file():
        try:
            return load_file(path)
        except (OSError, SafetensorError) as error:
            raise ModelLoadingError(f"{path} cannot be read: {error}") from error
    weights: dict[str, NDArray[Any]] = {}
    for file, read in ((encoder, _encoder_weights), (decoder, _decoder_weights)):
        if file is None:
            continue
        if not file.is_file():
            raise WeightsNotFoundError(f"{folder} has neither {WEIGHTS_FILE} nor {file.name}")
        try:
            weights |= read(_Graph(file))
        except KeyError as error:
            raise ModelLoadingError(f"{file} has no weight {error}: is it quantised?") from error
    return {name: torch.from_numpy(np.array(values)) for name, values in weights.items()}


class _Graph:
    """A graph's weights, also through casts, and its nodes."""

    def __init__(self, path: Path) -> None:
        model = OnnxModel(path.read_bytes())
        self.nodes = model.nodes
        self.tensors = model.tensors(path.parent)
        for node in model.nodes:
            if node.kind == "Cast" and node.inputs[0] in self.tensors:
                self.tensors[node.outputs[0]] = self.tensors[node.inputs[0]]

    def parameter(self, node: Node) -> NDArray[Any]:
        """The one input of a node that is a weight."""
        for name in node.inputs:
            if name in self.tensors:
                return self.tensors[name]
        raise KeyError(node.outputs[0])

    def named(self) -> dict[str, NDArray[Any]]:
        """Weights that kept their parameter's name, and those of products, convolutions and their biases."""
        found = {
            name: values
            for name, values in self.tensors.items()
            if name.endswith((".weight", ".bias", ".pos_bias_u", ".pos_bias_v"))
        }
        for node in self.nodes:
            match = _MODULE.match(node.outputs[0]) if node.outputs else None
            if match is None:
                continue
            module = _TWICE.sub("", match["path"].replace("/", "."))
            if match["kind"] == "MatMul" == node.kind and any(name in self.tensors for name in node.inputs):
                found[f"{module}.weight"] = self.parameter(node).T
            elif match["kind"] == "Conv" == node.kind:
                for name, value in zip(("weight", "bias"), node.inputs[1:], strict=False):
                    found[f"{module}.{name}"] = self.tensors[value]
        return found


def _encoder_weights(graph: _Graph) -> dict[str, NDArray[Any]]:
    found = {f"{ENCODER}{name}": values for name, values in graph.named().items()}
    # A convolution over one frame is a product.
    for name in [name for name in found if ".pointwise_conv" in name and name.endswith("weight")]:
        found[name] = found[name][:, :, 0]
    return found | _input_scale(graph) | read_prompt(graph.tensors)


def _input_scale(graph: _Graph) -> dict[str, NDArray[Any]]:
    """What is done to features before the first convolution, and to frames before the first layer."""
    found: dict[str, NDArray[Any]] = {}
    readers: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for name in node.inputs:
            readers.setdefault(name, []).append(node)
    names = {"Sub": SHIFT, "Div": SCALE}
    value = "audio_signal"
    while True:
        following = [node for node in readers.get(value, ()) if node.kind in {"Transpose", *names}]
        if not following:
            break
        if following[0].kind in names:
            found[names[following[0].kind]] = np.asarray(graph.parameter(following[0]), np.float32)
        value = following[0].outputs[0]
    for node in graph.nodes:
        if node.kind == "Mul" and node.outputs[0].startswith("/pos_enc/"):
            scales = [graph.tensors[name] for name in node.inputs if name in graph.tensors]
            if scales and scales[0].ndim == 0 and scales[0].dtype.kind == "f":
                found[POSITION_SCALE] = np.asarray(scales[0], np.float32)
    return found


def _decoder_weights(graph: _Graph) -> dict[str, NDArray[Any]]:
    found = {name: values for name, values in graph.named().items() if name.startswith("joint.")}
    layer = 0
    for node in graph.nodes:
        if node.kind == "Gather" and node.inputs[0] in graph.tensors and "embed" in node.outputs[0]:
            found["decoder.prediction.embed.weight"] = graph.tensors[node.inputs[0]]
        if node.kind != "LSTM":
            continue
        inputs, recurrent, biases = (graph.tensors[name][0] for name in node.inputs[1:4])
        prefix = "decoder.prediction.dec_rnn.lstm"
        found[f"{prefix}.weight_ih_l{layer}"] = _reordered(inputs)
        found[f"{prefix}.weight_hh_l{layer}"] = _reordered(recurrent)
        for name, own in zip(("bias_ih", "bias_hh"), np.split(biases, 2), strict=True):
            found[f"{prefix}.{name}_l{layer}"] = _reordered(own)
        layer += 1
    return found


def _reordered(gates: NDArray[Any]) -> NDArray[Any]:
    """The four gates in torch's order."""
    parts = np.split(gates, 4)
    return np.concatenate([parts[index] for index in _LSTM_GATES])


def layer_count(weights: Mapping[str, Any], pattern: str) -> int:
    """How many layers there are: one more than the highest number that ``pattern`` finds in a name."""
    numbers = [int(match[1]) for name in weights if (match := re.match(pattern, name))]
    return max(numbers, default=-1) + 1
