"""A small FastConformer transducer as one of the published size; see the package.

Attention has relative positions: the sine and cosine of a frequency are found again among those of the wider
table, because the width is a multiple of the small one. Frames keep their meaning through the layers that are
added, since layer normalisation of what is normalised changes nothing; the last one has the scale and shift
of the small model's last.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from parley.asr.checkpoint import BLANK, CONFIG_FILE, VOCABULARY_FILE, WEIGHTS_FILE
from parley_torch.asr.fastconformer import EncoderSizes
from parley_torch.asr.weights import ENCODER, read_weights
from widened.padding import head_places, pad, pad_inputs, pad_outputs, place, repeat

_LAYER = re.compile(r"layers\.(\d+)\.(.+)")
_EMBEDDING = "decoder.prediction.embed.weight"
_OUT = re.compile(r"joint\.joint_net\.\d+\.(weight|bias)")
_LSTM = "decoder.prediction.dec_rnn.lstm"
_GATES = 4
_NEVER = -1e4
"""Score of a token that the small model does not have."""


@dataclass(frozen=True)
class TransducerSize:
    """What a recogniser grows to."""

    copies: int = 7
    """Of the values between layers: 7 times 144 is 1,008, and 1,024 are published."""
    layers: int = 24
    heads: int = 9
    """9 of 112; published are 8 of 128."""
    inner: int = 4096
    channels: int = 256
    decoder: int = 640
    """Width of prediction and joint network."""
    tokens: int = 1024
    """Without the blank."""


def widen_recognizer(source: Path, encoder: str, folder: Path, size: TransducerSize) -> Path:
    """Write a larger recogniser for ``engine`` = ``torch`` that recognises what a small one recognises.

    Returns:
        ``folder``.
    """
    config = json.loads((source / CONFIG_FILE).read_text())
    tokens = [line.rpartition(" ")[0] for line in (source / VOCABULARY_FILE).read_text("utf-8").splitlines()]
    assert tokens[-1] == BLANK, "the blank is the last token"
    weights = read_weights(source, source / encoder, source / "decoder_joint-model.onnx")
    causal = "streaming" in config
    small = EncoderSizes.of(weights, bands=config["features_size"], causal=causal)
    wide = widen_encoder(weights, small, size) | widen_decoder(weights, len(tokens) - 1, size)
    if causal:
        _, left, _ = config["streaming"]["cache_last_channel"]
        width = small.width * size.copies
        config["streaming"]["cache_last_channel"] = [size.layers, left, width]
        config["streaming"]["cache_last_time"] = [size.layers, width, small.kernel - 1]
    added = [f"<unused{number}>" for number in range(size.tokens + 1 - len(tokens))]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / VOCABULARY_FILE).write_text(
        "".join(f"{token} {number}\n" for number, token in enumerate([*tokens[:-1], *added, BLANK])), "utf-8"
    )
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n")
    save_file({name: tensor.contiguous() for name, tensor in wide.items()}, folder / WEIGHTS_FILE)
    return folder


def widen_encoder(
    weights: Mapping[str, Tensor], small: EncoderSizes, size: TransducerSize
) -> dict[str, Tensor]:
    """The encoder's tensors, and what is done to features."""
    own = {name: tensor.float() for name, tensor in weights.items() if name.startswith(ENCODER)}
    found = {name: tensor for name, tensor in weights.items() if name.startswith("features.")}
    layers: list[dict[str, Tensor]] = [{} for _ in range(small.layers)]
    for name, tensor in own.items():
        if match := _LAYER.fullmatch(name.removeprefix(ENCODER)):
            layers[int(match[1])][match[2]] = tensor
        elif tensor.ndim == 0:
            found[name] = tensor
    found |= {
        f"{ENCODER}pre_encode.{name}": tensor for name, tensor in _subsampling(own, small, size).items()
    }
    wide = [_layer(layer, small, size) for layer in layers]
    wide += [_added_layer(wide[-1]) for _ in range(size.layers - small.layers)]
    scale, shift = "norm_out.weight", "norm_out.bias"
    if len(wide) > small.layers:
        for layer in wide[small.layers - 1 : -1]:
            layer[scale], layer[shift] = torch.ones_like(layer[scale]), torch.zeros_like(layer[shift])
        wide[-1][scale], wide[-1][shift] = (repeat(layers[-1][name], size.copies) for name in (scale, shift))
    for number, layer in enumerate(wide):
        found |= {f"{ENCODER}layers.{number}.{name}": tensor.clone() for name, tensor in layer.items()}
    return found


def _subsampling(own: Mapping[str, Tensor], small: EncoderSizes, size: TransducerSize) -> dict[str, Tensor]:
    found = {}
    for name, tensor in own.items():
        if name.startswith(f"{ENCODER}pre_encode.conv."):
            depth = tensor.shape[1:2] if tensor.ndim < 4 or tensor.shape[1] == 1 else (size.channels,)
            found[name.removeprefix(f"{ENCODER}pre_encode.")] = pad(
                tensor, size.channels, *depth, *tensor.shape[2:]
            )
    out = own[f"{ENCODER}pre_encode.out.weight"]
    bands = small.subsampled(small.bands)
    found["out.weight"] = repeat(pad_inputs(out, size.channels * bands), size.copies)
    found["out.bias"] = repeat(own[f"{ENCODER}pre_encode.out.bias"], size.copies)
    return found


def _layer(layer: Mapping[str, Tensor], small: EncoderSizes, size: TransducerSize) -> dict[str, Tensor]:
    """One of the small model's layers."""
    products = _Products(small, size)
    return {name: products.widen(name, tensor) for name, tensor in layer.items()}


class _Products:
    """How the tensors of a layer grow, by the last part of their module's name."""

    def __init__(self, small: EncoderSizes, size: TransducerSize) -> None:
        self._size = size
        self._width = small.width * size.copies
        self._head = self._width // size.heads
        self._places = head_places(small.heads, small.head, self._head)
        # Scores are divided by the root of the head's width.
        self._sharper = math.sqrt(self._head / small.head)
        frequencies = torch.arange(small.width // 2) * size.copies
        self._table = torch.stack([2 * frequencies, 2 * frequencies + 1], dim=1).flatten()
        self._ways: dict[str, Callable[[Tensor], Tensor]] = {
            "self_attn": lambda tensor: pad(tensor, size.heads, self._head),  # what is added to queries
            "linear_q": self._to_heads,
            "linear_k": lambda tensor: self._sharper * self._to_heads(tensor),
            "linear_v": self._to_heads,
            "linear_pos": self._positions,
            "linear_out": self._from_heads,
            "linear1": lambda tensor: pad_outputs(self._reads(tensor), size.inner),
            "linear2": lambda tensor: repeat(pad_inputs(tensor, size.inner), size.copies),
            "pointwise_conv1": self._gated,
            "pointwise_conv2": lambda tensor: repeat(self._reads(tensor), size.copies),
        }

    def widen(self, name: str, tensor: Tensor) -> Tensor:
        """A tensor of the layer; normalisations and depthwise convolutions are of each value."""
        way = self._ways.get(name.rsplit(".", 2)[-2])
        return way(tensor) if way else repeat(tensor, self._size.copies)

    def _reads(self, tensor: Tensor) -> Tensor:
        """A matrix that reads the first copy, or a bias as it is."""
        return pad_inputs(tensor, self._width)

    def _to_heads(self, tensor: Tensor) -> Tensor:
        return place(self._reads(tensor), self._places, self._width, 0)

    def _positions(self, tensor: Tensor) -> Tensor:
        heads = place(tensor, self._places, self._width, 0)
        return self._sharper * place(heads, self._table, self._width, 1)

    def _from_heads(self, tensor: Tensor) -> Tensor:
        inside = place(tensor, self._places, self._width, 1) if tensor.ndim > 1 else tensor
        return repeat(inside, self._size.copies)

    def _gated(self, tensor: Tensor) -> Tensor:
        """What is gated, then the gates."""
        return torch.cat([repeat(half, self._size.copies) for half in self._reads(tensor).chunk(2)])


def _added_layer(layer: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """As much work, and nothing is added to the frames."""
    silent = ("linear2", "linear_out", "pointwise_conv2")
    return {
        name: torch.zeros_like(tensor) if name.rsplit(".", 2)[-2].endswith(silent) else tensor
        for name, tensor in layer.items()
    }


def widen_decoder(weights: Mapping[str, Tensor], blank: int, size: TransducerSize) -> dict[str, Tensor]:
    """The tensors of prediction and joint network; the blank and the durations stay the last classes."""
    width = size.decoder
    found: dict[str, Tensor] = {}
    for name, stored in weights.items():
        tensor = stored.float()
        if name.startswith(_LSTM):
            parts = tensor.chunk(_GATES)
            shape = (width,) if tensor.ndim == 1 else (width, width)
            found[name] = torch.cat([pad(part, *shape) for part in parts])
        elif name == _EMBEDDING or _OUT.fullmatch(name):
            wide = pad_inputs(tensor, width)
            found[name] = torch.cat([pad_outputs(wide[:blank], size.tokens), wide[blank:]])
            if wide.ndim == 1:
                found[name][blank : size.tokens] = _NEVER
        elif name == "joint.enc.weight":
            found[name] = pad(tensor, width, tensor.shape[1] * size.copies)
        elif name.startswith("joint."):
            found[name] = pad(tensor, *[width] * tensor.ndim)
    return found
