"""How far an export, run by the code that serves it, is from NeMo itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from nemo.collections.asr.models import ASRModel
from numpy.typing import NDArray

from checkpoints import NemoEntry
from comparison import relative_difference, token_difference
from nemo_export import prompts
from nemo_export.layout import use_look_ahead
from parley.asr import checkpoint
from parley.asr.decoding.greedy import TransducerDecoder
from parley.asr.features import LogMel
from parley.asr.parakeet.networks import OnnxEncoder, OnnxJoint
from parley.asr.streaming import encoder as streaming_checkpoint
from parley.asr.streaming.encoder import HISTORY, CacheAwareEncoder
from parley.runtime.onnx import open_session

_THREADS = 2


@dataclass(frozen=True)
class Heard:
    """What a model makes of a recording."""

    encoded: NDArray[np.float32]
    """f32 ``[D, T']``."""
    tokens: list[int]


def compare(found: Sequence[Heard], expected: Sequence[Heard]) -> dict[str, float]:
    """The differences by measure, over all recordings."""
    encoded = [np.concatenate([one.encoded for one in heard], axis=1) for heard in (found, expected)]
    tokens = [[one.tokens for one in heard] for heard in (found, expected)]
    return {"encoder": relative_difference(*encoded), "tokens": token_difference(*tokens)}


@torch.no_grad()
def by_nemo(model: ASRModel, entry: NemoEntry, clips: Sequence[NDArray[np.float32]]) -> list[Heard]:
    """What NeMo makes of the recordings, for each look-ahead in turn."""
    model.eval()
    model.preprocessor.featurizer.dither = 0.0
    model.preprocessor.featurizer.pad_to = 0
    if not entry.streaming:
        return [_offline(model, clip) for clip in clips]
    mel = _nemo_mel(model, clips)
    tags = prompts.compared(model)
    heard = []
    for look_ahead in entry.look_aheads:
        for number, features in enumerate(mel):
            if tags:
                model.set_inference_prompt(tags[number % len(tags)])
            heard.append(_streamed(model, look_ahead, features))
    return heard


def by_export(
    folder: Path, entry: NemoEntry, clips: Sequence[NDArray[np.float32]], tags: Sequence[str] = ()
) -> list[Heard]:
    """What the serving code makes of the recordings with an export, for each look-ahead in turn.

    ``tags`` are the languages of the recordings, in turn, as :func:`nemo_export.prompts.compared` has them.
    """
    if entry.streaming:
        return _export_streamed(folder, entry, clips, tags)
    export = checkpoint.load(folder)
    mel = LogMel(export.config)
    encoder = OnnxEncoder(open_session(export.encoder, threads=_THREADS))
    decoder = TransducerDecoder.of(export, OnnxJoint(open_session(export.decoder, threads=_THREADS)))
    heard = []
    for clip in clips:
        features = mel.normalized(mel.offline(clip))
        encoded, lengths = encoder.encode(features[None], np.array([features.shape[1]], np.int64))
        (tokens,), _ = decoder.decode(encoded, lengths, decoder.initial_state(1))
        heard.append(Heard(encoded[0, :, : lengths[0]], tokens.ids.tolist()))
    return heard


def chunks(features: NDArray[np.float32], size: int) -> list[NDArray[np.float32]]:
    """Features ``[bands, T]`` as a stream feeds them: f32 ``[1, bands, history + size]`` each.

    Silence comes before them, and completes the last chunk and is one more after them.
    """
    flush = -features.shape[1] % size + size
    silence = np.float32(np.log(2.0**-24))
    padded = np.pad(features, ((0, 0), (HISTORY, flush)), constant_values=silence)
    starts = range(0, features.shape[1] + flush, size)
    return [np.ascontiguousarray(padded[None, :, start : start + HISTORY + size]) for start in starts]


def _offline(model: ASRModel, clip: NDArray[np.float32]) -> Heard:
    features, lengths = model.preprocessor(
        input_signal=torch.tensor(clip)[None], length=torch.tensor([len(clip)])
    )
    # NeMo's own features have a frame more than it says are real.
    encoded, encoded_lengths = model.encoder(audio_signal=features[:, :, : int(lengths[0])], length=lengths)
    (hypothesis,) = model.decoding.rnnt_decoder_predictions_tensor(
        encoded, encoded_lengths, return_hypotheses=True
    )
    tokens = [int(token) for token in hypothesis.y_sequence]
    return Heard(encoded[0, :, : int(encoded_lengths[0])].numpy(), tokens)


def _nemo_mel(model: ASRModel, clips: Sequence[NDArray[np.float32]]) -> list[NDArray[np.float32]]:
    mels = []
    for clip in clips:
        features, lengths = model.preprocessor(
            input_signal=torch.tensor(clip)[None], length=torch.tensor([len(clip)])
        )
        mels.append(features[0, :, : int(lengths[0])].numpy())
    return mels


def _streamed(model: ASRModel, look_ahead: int, features: NDArray[np.float32]) -> Heard:
    """By NeMo's own streaming step."""
    use_look_ahead(model, look_ahead)
    names = ("cache_last_channel", "cache_last_time", "cache_last_channel_len")
    caches = dict(zip(names, model.encoder.get_initial_cache_state(batch_size=1), strict=True))
    outputs, hypotheses, predicted = [], None, None
    size = int(model.encoder.subsampling_factor) * (look_ahead + 1)
    for chunk in map(torch.from_numpy, chunks(features, size)):
        inputs = {
            "processed_signal": chunk,
            "processed_signal_length": torch.tensor([chunk.shape[2]]),
            "drop_extra_pre_encoded": model.encoder.streaming_cfg.drop_extra_pre_encoded,
            "keep_all_outputs": True,
            **caches,
        }
        encoded = model.encoder.cache_aware_stream_step(**inputs)[0]
        outputs.append(model._apply_prompt_to_encoded(encoded)[0].numpy())  # noqa: SLF001 - as its own step does
        predicted, _, *following, hypotheses = model.conformer_stream_step(
            **inputs, previous_hypotheses=hypotheses, previous_pred_out=predicted, return_transcription=True
        )
        caches = dict(zip(names, following, strict=True))
    tokens = [int(token) for token in hypotheses[0].y_sequence] if hypotheses else []
    return Heard(np.concatenate(outputs, axis=1), tokens)


def _export_streamed(
    folder: Path, entry: NemoEntry, clips: Sequence[NDArray[np.float32]], tags: Sequence[str]
) -> list[Heard]:
    export = streaming_checkpoint.load(folder)
    mel = LogMel(export.checkpoint.config)
    joint = OnnxJoint(open_session(export.checkpoint.decoder, threads=_THREADS))
    decoder = TransducerDecoder.of(export.checkpoint, joint)
    heard = []
    for look_ahead in entry.look_aheads:
        encoder = CacheAwareEncoder(
            open_session(export.encoder(look_ahead), threads=_THREADS),
            lookahead=look_ahead,
            channel=export.streaming.cache_last_channel,
            time=export.streaming.cache_last_time,
        )
        for number, clip in enumerate(clips):
            tag = tags[number % len(tags)] if tags else ""
            prompt = np.array([export.checkpoint.prompt(tag)], np.int64)
            caches = {name: value[None] for name, value in encoder.initial.items()}
            state, outputs, tokens = decoder.initial_state(1), [], []
            for chunk in chunks(mel.offline(clip), encoder.chunk):
                encoded, lengths, caches = encoder.encode(chunk, caches, prompt)
                (new,), state = decoder.decode(encoded, lengths, state)
                outputs.append(encoded[0, :, : lengths[0]])
                tokens += new.ids.tolist()
            heard.append(Heard(np.concatenate(outputs, axis=1), tokens))
    return heard
