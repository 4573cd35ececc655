"""CAM++ (3D-Speaker, Apache-2.0) as an ONNX graph whose weights stay in the published PyTorch file.

Convolutions over bands and time, then blocks of densely connected dilated layers. Each layer has a gate that
sees the average over time. At the end come mean and deviation over time.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from parley.errors import ModelLoadingError
from parley.runtime.onnx_file import Node, OnnxModel, PartInput, make_node
from parley.speakers.torch_file import StoredTensor, read_tensors

BANK, EMBEDDING = "bank", "embedding"
"""Input and output of the graph; see :func:`make_graph`."""
BANDS = 80
MOST_FRAMES = 200
"""Longest input. The gates of the published network see the average of each two seconds, and that of all. In
a shorter input both are the same."""
_DILATIONS = (1, 2, 2)
"""Dilation of each block's convolutions."""
_EPSILON = 1e-5


def make_graph(file: Path) -> bytes:
    """An ONNX model, to be loaded from the folder of ``file``, that reads its weights from it.

    Input: ``bank`` f32 ``[B, frames, 80]``, Kaldi's filter bank less each band's mean, at most 200 frames.
    Output: ``embedding`` f32 ``[B, dimensions]``.

    Raises:
        ModelLoadingError: the file has no such network.
    """
    model, tensors = OnnxModel.empty(), read_tensors(file)
    for name, stored in tensors.items():
        model.add_stored(name, stored.shape, file.name, stored.offset, stored.length)
    try:
        width = tensors["xvector.tdnn.linear.weight"].shape[1]
        size = tensors["xvector.dense.nonlinear.batchnorm.running_mean"].shape[0]
    except KeyError as error:
        raise ModelLoadingError(f"{file} is no CAM++ network: it has no {error}") from error
    model.add_constant("channel", np.array([1]))
    model.add_constant("time", np.array([-1]))
    model.add_constant("rows", np.array([0, width, -1]))
    model.add_constant("one", np.array(1, np.float32))
    model.add_constant("ones", np.ones(size, np.float32))
    model.add_constant("zeros", np.zeros(size, np.float32))
    layers = _Layers(tensors)
    layers.add_front()
    layers.add_blocks()
    layers.add_statistics()
    model.nodes = layers.nodes
    return model.part([PartInput(BANK, 3)], [EMBEDDING])


class _Layers:
    """Nodes by the names of the layers' weights; what a layer makes has the layer's name."""

    def __init__(self, tensors: Mapping[str, StoredTensor]) -> None:
        self._tensors = tensors
        self.nodes: list[Node] = []

    def add_front(self) -> None:
        """From the bank to ``front``: an eighth of the bands, each with its channels, over time."""
        image = self._add("Transpose", "bands", BANK, perm=(0, 2, 1))
        image = self._add("Unsqueeze", "image", image, "channel")
        image = self._conv("head.conv1", image, norm="head.bn1")
        for layer in ("layer1", "layer2"):
            for number, stride in enumerate((2, 1)):
                block = f"head.{layer}.{number}"
                inner = self._conv(f"{block}.conv1", image, norm=f"{block}.bn1", stride=stride)
                inner = self._conv(f"{block}.conv2", inner, norm=f"{block}.bn2", relu=False)
                if stride > 1:
                    shortcut = f"{block}.shortcut"
                    image = self._conv(
                        f"{shortcut}.0", image, norm=f"{shortcut}.1", stride=stride, relu=False
                    )
                image = self._add("Relu", block, self._add("Add", f"{block}.sum", inner, image))
        image = self._conv("head.conv2", image, norm="head.bn2", stride=2)
        self._add("Reshape", "front", image, "rows")

    def add_blocks(self) -> None:
        """From ``front`` to ``blocks``."""
        rows = self._conv("xvector.tdnn.linear", "front", stride=2)
        rows = self._norm("xvector.tdnn.nonlinear.batchnorm", rows)
        for block, dilation in enumerate(_DILATIONS, start=1):
            layer = 1
            while f"{(name := f'xvector.block{block}.tdnnd{layer}')}.linear1.weight" in self._tensors:
                rows = self._add("Concat", name, rows, self._dense(name, rows, dilation), axis=1)
                layer += 1
            rows = self._norm(f"xvector.transit{block}.nonlinear.batchnorm", rows)
            rows = self._conv(f"xvector.transit{block}.linear", rows)
        self._add("Identity", "blocks", self._norm("xvector.out_nonlinear.batchnorm", rows))

    def add_statistics(self) -> None:
        """From ``blocks`` to the embedding."""
        mean = self._add("ReduceMean", "mean", "blocks", "time")
        squares = self._add(
            "ReduceSumSquare", "squares", self._add("Sub", "difference", "blocks", mean), "time"
        )
        frames = self._add("Cast", "frames", self._add("Shape", "length", "blocks", start=-1), to=1)
        variance = self._add("Div", "variance", squares, self._add("Sub", "freedom", frames, "one"))
        rows = self._add("Concat", "statistics", mean, self._add("Sqrt", "deviation", variance), axis=1)
        rows = self._conv("xvector.dense.linear", rows)
        norm = "xvector.dense.nonlinear.batchnorm"
        normed = self._add(
            "BatchNormalization",
            norm,
            *(rows, "ones", "zeros", f"{norm}.running_mean", f"{norm}.running_var"),
            epsilon=_EPSILON,
        )
        self._add("Squeeze", EMBEDDING, normed, "time")

    def _dense(self, name: str, rows: str, dilation: int) -> str:
        rows = self._norm(f"{name}.nonlinear1.batchnorm", rows)
        rows = self._conv(f"{name}.linear1", rows)
        rows = self._norm(f"{name}.nonlinear2.batchnorm", rows)
        mean = self._add("ReduceMean", f"{name}.mean", rows, "time")
        context = self._add("Add", f"{name}.context", mean, mean)
        context = self._add("Relu", f"{name}.relu", self._conv(f"{name}.cam_layer.linear1", context))
        gate = self._add("Sigmoid", f"{name}.gate", self._conv(f"{name}.cam_layer.linear2", context))
        local = self._conv(f"{name}.cam_layer.linear_local", rows, dilation=dilation)
        return self._add("Mul", f"{name}.gated", local, gate)

    def _conv(
        self, name: str, read: str, *, norm: str = "", stride: int = 1, dilation: int = 1, relu: bool = True
    ) -> str:
        weight, bias = f"{name}.weight", f"{name}.bias"
        found = self._tensors.get(weight)
        kernel = found.shape[2:] if found else (1,)
        around = [dilation * (size - 1) // 2 for size in kernel]
        made = self._add(
            "Conv",
            name,
            *(read, weight, *([bias] if bias in self._tensors else [])),
            strides=(stride, 1)[: len(kernel)],
            pads=around * 2,
            dilations=[dilation] * len(kernel),
        )
        return self._norm(norm, made, relu=relu) if norm else made

    def _norm(self, name: str, read: str, *, relu: bool = True) -> str:
        weights = [f"{name}.{part}" for part in ("weight", "bias", "running_mean", "running_var")]
        made = self._add("BatchNormalization", name, read, *weights, epsilon=_EPSILON)
        return self._add("Relu", f"{name}.relu", made) if relu else made

    def _add(
        self, kind: str, name: str, *read: str, **attributes: float | list[int] | tuple[int, ...]
    ) -> str:
        self.nodes.append(make_node(kind, read, [name], domain="", **attributes))
        return name
