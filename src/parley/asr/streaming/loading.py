"""A streaming recogniser made from an export."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from parley.asr.decoding.batch import make_decoder
from parley.asr.features.log_mel import LogMel
from parley.asr.offline.networks import OnnxJoint
from parley.asr.streaming.encoder import CacheAwareEncoder, StreamingExport, choose
from parley.asr.streaming.recognizer import StreamingRecognizer
from parley.errors import ModelLoadingError, ParleyError


def load_recognizer(
    export: StreamingExport,
    look_aheads_ms: Sequence[int],
    open_session: Callable[[Path], Any],
    *,
    mel: LogMel | None = None,
    slots: int,
    audio: int,
    beam_size: int | None = None,
) -> tuple[StreamingRecognizer, dict[int, int]]:
    """Open the networks and run each once.

    Args:
        export: the model.
        look_aheads_ms: what clients may choose (milliseconds of audio).
        open_session: opens an ONNX file.
        mel: the front end; None: numpy's.
        slots: utterances at once.
        audio: samples that may come for an utterance in one step.
        beam_size: decode by beam search; None: greedily.

    Returns:
        The recogniser, and the feature frames of a chunk by look-ahead (milliseconds).

    Raises:
        ModelLoadingError: a network cannot be loaded or run.
    """
    encoders: dict[int, CacheAwareEncoder] = {}
    chunks: dict[int, int] = {}
    for look_ahead, path in choose(export, look_aheads_ms).items():
        encoder = CacheAwareEncoder(
            open_session(path),
            lookahead=look_ahead,
            channel=export.streaming.cache_last_channel,
            time=export.streaming.cache_last_time,
        )
        try:
            encoder.warm_up()
        except ParleyError as error:
            raise ModelLoadingError(f"{path} cannot be run: {error}") from error
        encoders[encoder.chunk] = encoder
        chunks[export.look_ahead_ms(look_ahead)] = encoder.chunk
    joint = OnnxJoint(open_session(export.checkpoint.decoder))
    recognizer = StreamingRecognizer(
        encoders,
        make_decoder(export.checkpoint, joint, beam_size=beam_size),
        mel or LogMel(export.checkpoint.config),
        slots=slots,
        audio=audio,
    )
    return recognizer, chunks
