"""How each model of the repository is driven."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from perf_analyzer import inputs
from perf_analyzer.export import FirstOf


@dataclass(frozen=True)
class Drive:
    """One model's way of being driven."""

    make: Callable[[inputs.Source], Sequence[Any]]
    """Makes the requests, or those of each sequence."""
    requests: int
    """Of a measurement at concurrency 1; of a model with sequences, whole sequences."""
    sequences: bool = False
    decoupled: bool = False
    """Whether a request has any number of responses."""
    first_of: FirstOf = FirstOf.EVERY
    first_output: str | None = None
    """The tensor that a first response must carry."""

    most: int | None = None
    """Requests at once beyond which the model refuses some; the program gives up at the first refusal."""

    @property
    def streams(self) -> bool:
        """Whether requests go over a stream; without one those of a sequence may overtake each other."""
        return self.sequences or self.decoupled


_STREAM = Drive(inputs.streams, 16, sequences=True, first_of=FirstOf.LAST)
_SPEECH = Drive(inputs.sentences, 32, decoupled=True, first_output="AUDIO")

DRIVES: Mapping[str, Drive] = MappingProxyType(
    {
        "smart_turn": Drive(inputs.pauses, 100),
        "parakeet_encoder": Drive(inputs.features, 100),
        "parakeet_decoder": Drive(inputs.encoded, 100),
        "parakeet_transcribe": Drive(inputs.recordings, 50),
        "parakeet_features": Drive(inputs.recordings, 100),
        "parakeet_text": Drive(inputs.decoded, 100),
        "parakeet_ensemble": Drive(inputs.recordings, 50),
        "moonshine_transcribe": Drive(inputs.recordings, 20),
        "parakeet_tdt": _STREAM,
        "nemotron_streaming": _STREAM,
        "moonshine": _STREAM,
        "whisper": _STREAM,
        "whisper_transcribe": Drive(inputs.recordings, 20),
        "sherpa_onnx": _STREAM,
        "sherpa_onnx_transcribe": Drive(inputs.recordings, 20),
        "qwen3": Drive(inputs.questions, 32, decoupled=True),
        "t3": Drive(inputs.texts_for_tokens, 8, decoupled=True),
        "s3gen": Drive(inputs.utterances, 16, decoupled=True, first_output="AUDIO"),
        "chatterbox": Drive(inputs.sentences, 8, decoupled=True, first_output="AUDIO"),
        "espeak": _SPEECH,
        "piper": _SPEECH,
        "kokoro": _SPEECH,
        "voice_enrollment": Drive(inputs.lists_of_voices, 100, most=8),
        "voice_agent": Drive(
            inputs.conversations,
            4,
            sequences=True,
            decoupled=True,
            first_of=FirstOf.BEGIN,
            first_output="AUDIO",
        ),
    }
)
"""By model, those that others need first."""
