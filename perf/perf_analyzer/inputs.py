"""What perf_analyzer sends to a model, made of the model's configuration and the project's recordings.

Models with the same tensors get the same requests: what ``REQUEST`` holds follows from the tensors beside it.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
import soundfile

from parley.asr.messages import AsrRequest, TranscribeRequest
from parley.chat import ChatMessage
from parley.inference import Tensor, struct_tensor
from parley.launcher.models import read_config
from parley.launcher.options import ROOT, TINY_PROFILE
from parley.llm.messages import GenerateRequest, Sampling
from parley.tts.messages import SpeakRequest
from parley.vad.silero import SAMPLE_RATE

Step: TypeAlias = Mapping[str, Tensor]
"""The tensors of one request, without a batch dimension."""
Steps: TypeAlias = Sequence[Step] | Sequence[Sequence[Step]]
"""Requests, or those of each sequence."""

REPOSITORY = ROOT / "model_repository"
PIECE_MS = 160
"""Audio of one request to a recogniser of streams."""
_DATA = ROOT / "tests" / "data"
_TURN_END = np.zeros(SAMPLE_RATE // 5, np.int16)
_SILENT = 0.02
"""Of the loudest sample; below it nothing is said."""
_FRAMES = 200
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


@dataclass(frozen=True)
class Drive:
    """How a model is driven."""

    steps: Steps
    requests: int
    """Of a measurement at concurrency 1; of a model with sequences, whole sequences."""
    sequences: bool
    decoupled: bool
    """Whether a request has any number of responses."""
    first_output: str | None
    """The tensor that a first response must carry; None: any."""

    @property
    def streams(self) -> bool:
        """Whether requests go over a stream; without one those of a sequence may overtake each other."""
        return self.sequences or self.decoupled


def drive_of(model: str, profile: str) -> Drive | None:
    """How a model of the repository is driven; None: no requests follow from its configuration."""
    config = read_config(REPOSITORY / model, profile)
    sequences = config.HasField("sequence_batching")
    decoupled = config.model_transaction_policy.decoupled
    make = _maker(config, sequences=sequences, decoupled=decoupled)
    if make is None:
        return None
    has_audio = decoupled and any(tensor.name == "AUDIO" for tensor in config.output)
    requests = 16 if sequences else 32 if decoupled else 64
    return Drive(make(profile), requests, sequences, decoupled, "AUDIO" if has_audio else None)


def _maker(config: Any, *, sequences: bool, decoupled: bool) -> Callable[[str], Steps] | None:
    inputs = {tensor.name: tensor for tensor in config.input}
    if not decoupled:
        return _of_one_response(inputs, sequences=sequences)
    if sequences or set(inputs) != {"REQUEST"}:
        return None
    return _sentences if any(tensor.name == "AUDIO" for tensor in config.output) else _questions


def _of_one_response(inputs: Mapping[str, Any], *, sequences: bool) -> Callable[[str], Steps] | None:
    needed = {name for name, tensor in inputs.items() if not tensor.optional}
    audio = inputs.get("AUDIO")
    if audio is not None and _type_of(audio) == "TYPE_INT16" and not set(inputs) - {"AUDIO", "REQUEST"}:
        if sequences:
            return _streams
        return _recordings if "REQUEST" in needed else _pauses
    lengths = [name for name in needed if name.endswith("LENGTH")]
    frames = [name for name in needed if list(inputs[name].dims) == [-1, -1]]
    if len(lengths) == len(frames) == 1 and len(needed) == 2:
        return lambda _: _noise(frames[0], lengths[0])
    return None


def _type_of(tensor: Any) -> str:
    name: str = (
        type(tensor).DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number[tensor.data_type].name
    )
    return name


def to_json(steps: Steps) -> bytes:
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


def _clips(profile: str) -> list[Tensor]:
    """Sentences that the profile's recognisers understand, i16 ``[n]``; the tiny ones only know few."""
    if profile == TINY_PROFILE:
        return [_read(_DATA / "asr_eval" / f"sentences-{number}.flac") for number in ("02", "06", "08", "10")]
    return [_read(path) for path in sorted((_DATA / "open_conversation").glob("0[2357]-*"))]


def _read(path: Path) -> Tensor:
    audio, rate = soundfile.read(path, dtype="int16")
    if rate != SAMPLE_RATE:
        raise ValueError(f"{path} has {rate} samples a second; it must have {SAMPLE_RATE}")
    return np.asarray(audio)


def _pauses(profile: str) -> Steps:
    """A turn and the silence after it."""
    return [{"AUDIO": np.concatenate([clip, _TURN_END])} for clip in _clips(profile)]


def _noise(frames: str, length: str) -> Steps:
    """Frames of one band, which stands for all bands of a network."""
    draw = np.random.default_rng(0)
    noise = draw.standard_normal((1, _FRAMES)).astype(np.float32)
    return [{frames: noise, length: np.array([_FRAMES], np.int64)}]


def _recordings(profile: str) -> Steps:
    message = struct_tensor(TranscribeRequest())
    return [{"AUDIO": clip, "REQUEST": message} for clip in _clips(profile)]


def _streams(profile: str) -> Steps:
    """Pieces of audio, the last of which ends the utterance.

    Without the silence after the speech, in which the utterance would end by itself.
    """
    piece = PIECE_MS * SAMPLE_RATE // 1000
    found: list[list[Step]] = []
    for whole in _clips(profile):
        clip = whole[: np.flatnonzero(np.abs(whole) > _SILENT * np.abs(whole).max())[-1] + 1]
        pieces = [clip[start : start + piece] for start in range(0, len(clip), piece)]
        found.append(
            [
                {"AUDIO": audio, "REQUEST": struct_tensor(AsrRequest(flush=number == len(pieces)))}
                for number, audio in enumerate(pieces, 1)
            ]
        )
    return found


def _questions(_: str) -> Steps:
    sampling = Sampling(max_tokens=_ANSWER_TOKENS)
    return [
        {
            "REQUEST": struct_tensor(
                GenerateRequest(messages=[ChatMessage(role="user", content=question)], sampling=sampling)
            )
        }
        for question in _QUESTIONS
    ]


def _sentences(_: str) -> Steps:
    return [{"REQUEST": struct_tensor(SpeakRequest(text=text))} for text in _SENTENCES]
