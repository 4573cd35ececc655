"""What perf_analyzer sends: tensors of the models, as the JSON that it reads.

Everything is made of the project's own recordings and messages, so that it changes with them.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
import soundfile

from parley.asr import checkpoint
from parley.asr.checkpoint import Checkpoint
from parley.asr.decoding.batch import make_decoder
from parley.asr.features.log_mel import LogMel
from parley.asr.messages import AsrRequest, TranscribeRequest
from parley.asr.offline.networks import TOKEN_OUTPUTS, OnnxEncoder, OnnxJoint
from parley.chat import ChatMessage
from parley.errors import ParleyError
from parley.inference import Tensor, struct_tensor, text_tensor
from parley.launcher.options import ROOT, TINY_PROFILE
from parley.llm.messages import GenerateRequest, Sampling
from parley.models.parakeet_decoder import DecoderService
from parley.protocol import SilenceOptions, Start, encode
from parley.runtime.onnx import open_session
from parley.runtime.parameters import Parameters
from parley.runtime.weights import resolve_weights
from parley.tts.messages import SpeakRequest
from parley.tts.voice_messages import ListVoices
from parley.vad.silero import SAMPLE_RATE
from parley_torch.tts.s3gen.flow import SPEAKER_SIZE
from parley_torch.tts.s3gen.messages import OpenUtterance
from parley_torch.tts.s3gen.networks import MEL_BANDS
from parley_torch.tts.s3gen.state import FRAMES_PER_TOKEN
from parley_torch.tts.t3.messages import SpeechTokensRequest
from parley_torch.tts.t3.request import SPEAKER_EMBEDDING_SIZE, SPEECH_CODES

Step: TypeAlias = Mapping[str, Tensor]
"""The tensors of one request, without a batch dimension."""
Sequences: TypeAlias = Sequence[Sequence[Step]]
"""The requests of each sequence."""

PIECE_MS = 160
"""Audio of one request to a recogniser of streams."""
_DATA = ROOT / "tests" / "data"
_CLIPS = {
    TINY_PROFILE: (_DATA / "asr_eval", ("sentences-02", "sentences-06", "sentences-08", "sentences-10")),
    "": (_DATA / "open_conversation", ("02-weather", "03-and-in-london", "05-capital", "07-pancakes")),
}
"""Recordings that the profile's recognisers understand; the tiny ones only know few sentences."""
_TURN_END_MS = 200
_SILENT = 0.02
"""Of the loudest sample; below it nothing is said."""
_SENTENCES = (
    "In Paris it is eight degrees, and foggy.",
    "I have set the timer.",
    "The train leaves at half past seven.",
    "You are welcome! Goodbye.",
)
_QUESTIONS = (
    "What's the weather in Paris?",
    "What time is it in Tokyo?",
    "Set a timer for ten minutes.",
    "Tell me a story.",
)
_ANSWER_TOKENS = 32
_SPEECH_TOKENS = 50
"""Two seconds of sound."""
_HANG_UP_MS = 1_000


@dataclass(frozen=True)
class Source:
    """What inputs are made of."""

    profile: str
    parameters: Parameters
    """Of the model."""

    def clips(self) -> list[Tensor]:
        """Sentences, i16 ``[n]``, 16 kHz mono."""
        folder, names = _CLIPS.get(self.profile, _CLIPS[""])
        found = [next(folder.glob(f"{name}.*")) for name in names]
        return [_read(path) for path in found]


def _read(path: Path) -> Tensor:
    audio, rate = soundfile.read(path, dtype="int16")
    if rate != SAMPLE_RATE:
        raise ValueError(f"{path} has {rate} samples a second; it must have {SAMPLE_RATE}")
    return np.asarray(audio)


def to_json(steps: Sequence[Step] | Sequences) -> bytes:
    """The file for ``--input-data``: requests one after the other, or those of each sequence."""
    nested = [
        [_encode(step) for step in one] if not isinstance(one, Mapping) else _encode(one) for one in steps
    ]
    return msgspec.json.encode({"data": nested})


def _encode(step: Step) -> dict[str, Any]:
    return {name: _tensor(value) for name, value in step.items()}


def _tensor(value: Tensor) -> dict[str, Any]:
    """Numbers as their bytes, which the program takes as they are; texts as texts, which it measures."""
    shape = list(value.shape)
    if value.dtype == np.object_:
        return {"content": [bytes(text).decode() for text in value.reshape(-1)], "shape": shape}
    if not value.size:
        return {"content": [], "shape": shape}
    raw = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
    return {"content": {"b64": raw}, "shape": shape}


# --- recognition --------------------------------------------------------------------------


def pauses(source: Source) -> list[Step]:
    """Of ``smart_turn``: a turn and the silence after it."""
    silence = np.zeros(_TURN_END_MS * SAMPLE_RATE // 1000, np.int16)
    return [{"AUDIO": np.concatenate([clip, silence])} for clip in source.clips()]


def features(source: Source) -> list[Step]:
    """Of ``parakeet_encoder``: whole sentences."""
    return [{"FEATURES": one, "LENGTH": np.array([one.shape[1]], np.int64)} for one in _log_mels(source)]


def encoded(source: Source) -> list[Step]:
    """Of ``parakeet_decoder``: the same sentences, encoded here."""
    encoder = OnnxEncoder(open_session(_checkpoint(source).encoder))
    steps: list[Step] = []
    for one in _log_mels(source):
        outputs, lengths = encoder.encode(one[None], np.array([one.shape[1]], np.int64))
        steps.append({"ENCODED": outputs[0], "ENCODED_LENGTH": lengths})
    return steps


def decoded(source: Source) -> list[Step]:
    """Of ``parakeet_text``: the same sentences, decoded here."""
    export = _checkpoint(source)
    decoder = DecoderService(make_decoder(export, OnnxJoint(open_session(export.decoder)), beam_size=None))
    requests = [{name: value[None] for name, value in step.items()} for step in encoded(source)]
    message = struct_tensor(TranscribeRequest())
    steps: list[Step] = []
    for clip, made in zip(source.clips(), decoder.serve(requests), strict=True):
        if isinstance(made, ParleyError):
            raise made
        length_ms = len(clip) * 1000 // SAMPLE_RATE
        tokens = {name: made[name][0] for name in TOKEN_OUTPUTS}
        steps.append({**tokens, "SPAN": np.array([length_ms, 0, length_ms]), "REQUEST": message})
    return steps


def _log_mels(source: Source) -> list[Tensor]:
    mel = LogMel(_checkpoint(source).config)
    return [mel.normalized(mel.offline(_floats(clip))) for clip in source.clips()]


def _checkpoint(source: Source) -> Checkpoint:
    return checkpoint.load(resolve_weights(source.parameters, checkpoint.DEFAULT, checkpoint.FILES))


def _floats(audio: Tensor) -> Tensor:
    return audio.astype(np.float32) / np.float32(32768)


def recordings(source: Source) -> list[Step]:
    """Of a model for whole recordings."""
    message = struct_tensor(TranscribeRequest())
    return [{"AUDIO": clip, "REQUEST": message} for clip in source.clips()]


def streams(source: Source) -> list[list[Step]]:
    """Of a recogniser of streams: pieces of audio, the last of which ends the utterance.

    Without the silence after the speech, in which the utterance would end by itself.
    """
    piece = PIECE_MS * SAMPLE_RATE // 1000
    found: list[list[Step]] = []
    for whole in source.clips():
        clip = whole[: np.flatnonzero(np.abs(whole) > _SILENT * np.abs(whole).max())[-1] + 1]
        pieces = [clip[start : start + piece] for start in range(0, len(clip), piece)]
        requests = [AsrRequest()] * (len(pieces) - 1) + [AsrRequest(flush=True)]
        found.append(
            [
                {"AUDIO": audio, "REQUEST": struct_tensor(request)}
                for audio, request in zip(pieces, requests, strict=True)
            ]
        )
    return found


# --- language and speech ------------------------------------------------------------------


def questions(_: Source) -> list[Step]:
    """Of a chat model."""
    requests = (
        GenerateRequest(
            messages=[ChatMessage(role="user", content=question)],
            sampling=Sampling(max_tokens=_ANSWER_TOKENS),
        )
        for question in _QUESTIONS
    )
    return [{"REQUEST": struct_tensor(request)} for request in requests]


def sentences(_: Source) -> list[Step]:
    """Of a synthesizer."""
    return [{"REQUEST": struct_tensor(SpeakRequest(text=text))} for text in _SENTENCES]


def texts_for_tokens(_: Source) -> list[Step]:
    """Of ``t3``."""
    voice = np.full(SPEAKER_EMBEDDING_SIZE, 1 / 16, np.float32)
    requests = (SpeechTokensRequest(text=text, max_tokens=_SPEECH_TOKENS) for text in _SENTENCES)
    return [{"REQUEST": struct_tensor(request), "SPEAKER_EMBEDDING": voice} for request in requests]


def utterances(_: Source) -> list[Step]:
    """Of ``s3gen``: all tokens at once, with a voice of one second."""
    draw = np.random.default_rng(0)
    prompt = SPEECH_CODES // 2 * np.ones(25, np.int32)
    return [
        {
            "REQUEST": struct_tensor(OpenUtterance(seed=seed, final=True)),
            "TOKENS": draw.integers(0, SPEECH_CODES, _SPEECH_TOKENS, np.int32),
            "SPEAKER": np.full(SPEAKER_SIZE, 1 / 16, np.float32),
            "PROMPT_TOKENS": prompt,
            "PROMPT_MEL": np.zeros((FRAMES_PER_TOKEN * len(prompt), MEL_BANDS), np.float32),
        }
        for seed in range(4)
    ]


def lists_of_voices(_: Source) -> list[Step]:
    """Of ``voice_enrollment``: what changes nothing in the store."""
    return [{"REQUEST": struct_tensor(ListVoices())}]


def conversations(_: Source) -> list[list[Step]]:
    """Of ``voice_agent``: it greets, hears nothing, and hangs up.

    More is not possible: the first request of a conversation is answered until its end, and perf_analyzer
    sends the next one of a sequence only then.
    """
    start = Start(
        system_prompt="", greeting=_SENTENCES[1], silence=SilenceOptions(hang_up_after_ms=_HANG_UP_MS)
    )
    return [[{"MESSAGE": text_tensor(encode(start))}, {"MESSAGE": text_tensor(b"")}]]
