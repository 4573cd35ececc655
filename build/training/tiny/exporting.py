"""Export of the tiny recognisers, and its comparison with NeMo."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import torch
from msgspec.structs import asdict
from nemo.collections.asr.models import EncDecRNNTBPEModel
from onnx import helper, numpy_helper

from checkpoints import NemoEntry, NemoLimits
from comparison import check
from nemo_export import accuracy, layout
from nemo_export.export import put
from tiny.augment import Heard
from tiny.streaming_model import DEFAULT_LOOK_AHEAD, LOOK_AHEADS

_LIMITS = NemoLimits(encoder=1e-4, tokens=0.0)
OFFLINE = NemoEntry(name="tiny-parakeet-tdt", kind="tdt", precisions=(), accuracy={"fp32": _LIMITS})
STREAMING = NemoEntry(
    name="tiny-nemotron-streaming",
    kind="rnnt-streaming",
    precisions=(),
    accuracy={"fp32": _LIMITS},
    look_aheads=tuple(sorted(LOOK_AHEADS)),
    default_look_ahead=DEFAULT_LOOK_AHEAD,
)
COMPARED_CLIPS = 6
_LARGE = 256


def export(
    model: EncDecRNNTBPEModel,
    entry: NemoEntry,
    folder: Path,
    heard: Sequence[Heard],
    pack: Callable[[onnx.ModelProto], None] = lambda _: None,
) -> None:
    """Write the model in the layout of published exports, if it writes what NeMo writes.

    Args:
        model: for inference.
        entry: :data:`OFFLINE` or :data:`STREAMING`.
        folder: made if need be.
        heard: clips to compare with NeMo on.
        pack: as in :func:`nemo_export.layout.export`.

    Raises:
        ExportError: the export is too far from NeMo.
    """
    clips = [clip.audio for clip in heard]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        layout.export(model.eval(), entry, Path(made), pack)
        found = accuracy.by_export(Path(made), entry, clips)
        differences = accuracy.compare(found, accuracy.by_nemo(model, entry, clips))
        check(entry.name, "NeMo", differences, asdict(_LIMITS))
        put(Path(made), folder)


def round_weights(model: EncDecRNNTBPEModel) -> None:
    """Bring all weights to half precision, as they are stored; they remain f32 in memory."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.half().float())


def halve(model: onnx.ModelProto) -> None:
    """Store each large tensor that half precision holds exactly that way, and cast it where it is used."""
    casts = []
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.dtype != np.float32 or values.nbytes < _LARGE:
            continue
        half = values.astype(np.float16)
        if not np.array_equal(half.astype(np.float32), values):
            continue
        name = tensor.name
        tensor.CopyFrom(numpy_helper.from_array(half, f"{name}.half"))
        casts.append(helper.make_node("Cast", [f"{name}.half"], [name], to=onnx.TensorProto.FLOAT))
    nodes = [*casts, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
