"""A cache-aware streaming export as the files of sherpa-onnx, an independent runtime.

sherpa-onnx needs the prediction and the joint network in two files, and the sizes of everything as
metadata of the encoder (``online-transducer-nemo-model.cc``). The networks themselves stay as they
are, but the encoder gets features as NeMo computes them: NeMo adds 2**-24 to every band's energy before the
logarithm, while sherpa-onnx replaces energies below float's epsilon by it (``feature-fbank.cc``).

For the same text from the same audio the chunks must begin at the same sample, too: see ``LEAD``.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.utils import Extractor

LEAD = 9 * 160 + 80
"""Samples of silence to begin a stream with: the 9 frames of the past that go into the first chunk, and
half a frame, because sherpa-onnx' frame ``f`` is centred at sample ``160 f + 80`` and NeMo's at ``160 f``."""
_GUARD = 2.0**-24
_FLOOR = math.log(np.finfo(np.float32).eps)


def convert(export: Path, out: Path, look_ahead: int) -> None:
    """Write ``encoder.onnx``, ``decoder.onnx``, ``joiner.onnx`` and ``tokens.txt`` to ``out``.

    Args:
        export: folder of the export.
        out: is made.
        look_ahead: which of the export's encoders, in encoder frames.

    Raises:
        ValueError: the export is not one of a streaming RNN transducer, or lacks this look-ahead.
    """
    config = json.loads((export / "config.json").read_text())
    streaming = config.get("streaming")
    if not streaming or look_ahead not in streaming["look_aheads"]:
        raise ValueError(f"{export} has no streaming encoder for a look-ahead of {look_ahead}")
    out.mkdir(parents=True, exist_ok=True)
    joint = onnx.load(export / "decoder_joint-model.onnx")
    between = _between(joint)
    states = [["input_states_1", "input_states_2"], ["output_states_1", "output_states_2"]]
    extractor = Extractor(_with_value(joint, between))
    onnx.save(
        extractor.extract_model(
            ["targets", "target_length", *states[0]], [between, "prednet_lengths", *states[1]]
        ),
        out / "decoder.onnx",
    )
    onnx.save(extractor.extract_model(["encoder_outputs", between], ["outputs"]), out / "joiner.onnx")
    vocabulary = (export / "vocab.txt").read_text().splitlines()
    encoder = onnx.load(export / f"encoder-r{look_ahead}.onnx")
    _guard_energies(encoder.graph, "audio_signal")
    shapes = _shapes(joint)
    onnx.helper.set_model_props(
        encoder,
        {
            "vocab_size": str(len(vocabulary) - 1),
            "window_size": str(streaming["history_frames"] + streaming["chunk_frames"][str(look_ahead)]),
            "chunk_shift": str(streaming["chunk_frames"][str(look_ahead)]),
            "subsampling_factor": str(config["subsampling_factor"]),
            "normalize_type": "",
            "pred_rnn_layers": str(shapes["input_states_1"][0]),
            "pred_hidden": str(shapes["input_states_1"][2]),
            "model_type": "EncDecRNNTBPEModel",
            **_sizes("cache_last_channel", streaming["cache_last_channel"]),
            **_sizes("cache_last_time", streaming["cache_last_time"]),
        },
    )
    onnx.save(encoder, out / "encoder.onnx")
    shutil.copyfile(export / "vocab.txt", out / "tokens.txt")


def _guard_energies(graph: onnx.GraphProto, features: str) -> None:
    """Turn log-energies with a floor into log-energies with an addend; what lies at the floor is silence."""
    for node in graph.node:
        for place, name in enumerate(node.input):
            if name == features:
                node.input[place] = "guarded"
    for name, value in (("floor", _FLOOR + 1e-4), ("guard", _GUARD), ("silence", math.log(_GUARD))):
        graph.initializer.append(
            onnx.helper.make_tensor(f"guard_{name}", onnx.TensorProto.FLOAT, [], [value])
        )
    steps = [
        ("Exp", [features], "guard_energy"),
        ("Add", ["guard_energy", "guard_guard"], "guard_sum"),
        ("Log", ["guard_sum"], "guard_log"),
        ("LessOrEqual", [features, "guard_floor"], "guard_below"),
        ("Where", ["guard_below", "guard_silence", "guard_log"], "guarded"),
    ]
    for place, (kind, inputs, output) in enumerate(steps):
        graph.node.insert(place, onnx.helper.make_node(kind, inputs, [output]))


def _sizes(name: str, shape: list[int]) -> dict[str, str]:
    return {f"{name}_dim{at}": str(size) for at, size in enumerate(shape, 1)}


def _shapes(model: onnx.ModelProto) -> dict[str, list[int]]:
    return {one.name: [dim.dim_value for dim in one.type.tensor_type.shape.dim] for one in model.graph.input}


def _between(model: onnx.ModelProto) -> str:
    """The tensor that goes from the prediction network to the joint network.

    Raises:
        ValueError: there is no LSTM followed by a Squeeze.
    """
    produced: dict[str, Any] = {}
    lstm = None
    for node in model.graph.node:
        if node.op_type == "LSTM":
            lstm = node
        elif node.op_type == "Squeeze" and lstm is not None and node.input[0] in lstm.output:
            produced["last"] = node.output[0]
    if "last" not in produced:
        raise ValueError("no prediction network with an LSTM was found")
    return str(produced["last"])


def _with_value(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """Declare an inner tensor, so that it can be an input and an output."""
    if name not in {one.name for one in model.graph.value_info}:
        model.graph.value_info.append(
            onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [None, None, None])
        )
    return model
