"""ONNX export of the tiny streaming recogniser, one encoder for each look-ahead, and its check."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from nemo.collections.asr.models import EncDecRNNTBPEModel
from onnx import helper, numpy_helper

from nemo_export import chunks, graphs
from tiny.asr_model import (
    ENCODER_LAYERS,
    ENCODER_WIDTH,
    SILENCE,
    SUBSAMPLING,
    sizes,
    write_vocabulary,
)
from tiny.asr_training import features_of
from tiny.augment import Heard
from tiny.streaming_model import HISTORY, LEFT_CONTEXT, LOOK_AHEADS, look_ahead
from tiny.streaming_onnx import Floats, StreamingOnnx

TOLERANCE = 1e-4
WEIGHTS_FILE = "encoder.weights"
DROPPED = 2
"""Encoder frames that a chunk's history makes, which the exported encoder leaves out."""
CONVOLUTION_CACHE = 8
"""Encoder frames that a causal convolution keeps."""
_LARGE = 256


def check_export(model: EncDecRNNTBPEModel, folder: Path, heard: Sequence[Heard]) -> float:
    """Compare every look-ahead with ``model``, whose weights were exported; return the largest difference.

    Raises:
        RuntimeError: an encoder output differs by more than :data:`TOLERANCE`, or a token does.
    """
    model.eval()
    features, lengths = features_of(model, heard, history=0)
    drift = 0.0
    for frames in LOOK_AHEADS:
        look_ahead(model, frames)
        exported = StreamingOnnx(folder, frames)
        together = np.concatenate(list(exported.encode(features.numpy())), axis=2)
        for row, length in enumerate(lengths.tolist()):
            # Batched rows are longer here, so only what comes before the flush is the same.
            clip = features[row : row + 1, :, :length].numpy()
            expected, tokens = _nemo(model, exported, clip)
            alone = np.concatenate(list(exported.encode(clip)), axis=2)
            common = length // exported.chunk_frames * (frames + 1)
            differences = (alone - expected, alone[0, :, :common] - together[row, :, :common])
            drift = max(drift, *(float(np.abs(d).max(initial=0)) for d in differences))
            if drift > TOLERANCE:
                raise RuntimeError(f"{folder}: look-ahead {frames} differs from NeMo by {drift:.1e}")
            if tokens != (found := exported.tokens(clip[0])):
                raise RuntimeError(f"{folder}: look-ahead {frames} writes {found}, NeMo {tokens}")
    return drift


@torch.no_grad()
def _nemo(model: EncDecRNNTBPEModel, exported: StreamingOnnx, clip: Floats) -> tuple[Floats, list[int]]:
    """Encoder output ``[1, D, T']`` and tokens of one stream by NeMo's own streaming step."""
    names = ("cache_last_channel", "cache_last_time", "cache_last_channel_len")
    caches = dict(zip(names, model.encoder.get_initial_cache_state(batch_size=1), strict=True))
    outputs, hypotheses, predicted = [], None, None
    for chunk in map(torch.from_numpy, exported.chunks(clip)):
        inputs = {
            "processed_signal": chunk,
            "processed_signal_length": torch.tensor([chunk.shape[2]]),
            "drop_extra_pre_encoded": DROPPED,
            "keep_all_outputs": True,
            **caches,
        }
        outputs.append(model.encoder.cache_aware_stream_step(**inputs)[0].numpy())
        predicted, _, *following, hypotheses = model.conformer_stream_step(
            **inputs, previous_hypotheses=hypotheses, previous_pred_out=predicted, return_transcription=True
        )
        caches = dict(zip(names, following, strict=True))
    return np.concatenate(outputs, axis=2), [int(token) for token in hypotheses[0].y_sequence]


def encoder_file(frames: int) -> str:
    """Name of the encoder with a look-ahead of ``frames``."""
    return f"encoder-r{frames}.onnx"


def round_weights(model: EncDecRNNTBPEModel) -> None:
    """Bring all weights to half precision, as they are stored; they remain f32 in memory."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.half().float())


def export_streaming(model: EncDecRNNTBPEModel, folder: Path) -> None:
    """Write the model, whose weights :func:`round_weights` has rounded, into ``folder``.

    ``encoder-r<R>.onnx`` takes one chunk of ``8 (R + 1)`` feature frames after 9 frames of history, and the
    caches; the four share ``encoder.weights``.  ``decoder_joint-model.onnx`` and ``vocab.txt`` are as in
    published transducer exports, and ``config.json`` has all sizes.  Weights are stored in half precision
    and computed with in single precision.
    """
    folder.mkdir(parents=True, exist_ok=True)
    model.eval()
    config = streaming_sizes()
    streaming = config["streaming"]
    with (
        graphs.SharedWeights(folder / WEIGHTS_FILE) as weights,
        tempfile.TemporaryDirectory() as temporary,
    ):
        for frames in LOOK_AHEADS:
            look_ahead(model, frames)
            model.set_export_config({"cache_support": "True"})
            model.export(str(Path(temporary) / "model.onnx"))
            encoder = chunks.specialise(
                graphs.read(Path(temporary) / "encoder-model.onnx"),
                frames=HISTORY + streaming["chunk_frames"][str(frames)],
                caches={name: streaming[name] for name in ("cache_last_channel", "cache_last_time")},
            )
            halve(encoder)
            weights.save(encoder, folder / encoder_file(frames))
        decoder = graphs.read(Path(temporary) / "decoder_joint-model.onnx")
        halve(decoder)
        onnx.save(decoder, folder / "decoder_joint-model.onnx")
    write_vocabulary(model, folder)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def streaming_sizes() -> dict[str, Any]:
    """What ``config.json`` says."""
    return {
        **sizes(),
        "model_type": "nemo-conformer-rnnt",
        "normalize": "NA",
        "durations": [],
        "streaming": {
            "look_aheads": sorted(LOOK_AHEADS),
            "default_look_ahead": 1,
            "chunk_frames": {str(frames): SUBSAMPLING * (frames + 1) for frames in sorted(LOOK_AHEADS)},
            "history_frames": HISTORY,
            "dropped_frames": DROPPED,
            "silence": round(SILENCE, 4),
            "left_context": LEFT_CONTEXT,
            "cache_last_channel": [ENCODER_LAYERS, LEFT_CONTEXT, ENCODER_WIDTH],
            "cache_last_time": [ENCODER_LAYERS, ENCODER_WIDTH, CONVOLUTION_CACHE],
        },
    }


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
