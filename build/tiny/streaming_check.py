"""Does the exported streaming recogniser do what NeMo's model does, and in a batch what it does alone?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from nemo.collections.asr.models import EncDecRNNTBPEModel

from tiny.asr_training import features_of
from tiny.augment import Heard
from tiny.streaming_export import DROPPED
from tiny.streaming_model import LOOK_AHEADS, look_ahead
from tiny.streaming_onnx import Floats, StreamingOnnx

TOLERANCE = 1e-4


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
