"""Deepgram's messages and answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Literal, TypeAlias
from uuid import uuid4

import msgspec

from parley.errors import InvalidMessageError
from parley.protocol import Word

_ARCH = "parley"
_VERSION = "1"


class KeepAlive(msgspec.Struct, frozen=True, tag_field="type"):
    """The client is there, and silent."""


class Finalize(msgspec.Struct, frozen=True, tag_field="type"):
    """Write down now what was sent so far."""


class CloseStream(msgspec.Struct, frozen=True, tag_field="type"):
    """No more audio comes."""


ListenMessage: TypeAlias = KeepAlive | Finalize | CloseStream


class Speak(msgspec.Struct, frozen=True, tag_field="type"):
    """Text to be spoken, behind what came before."""

    text: str


class Flush(msgspec.Struct, frozen=True, tag_field="type"):
    """Speak all that came; ``Flushed`` follows its audio."""


class Clear(msgspec.Struct, frozen=True, tag_field="type"):
    """Forget all that was not spoken yet; ``Cleared`` follows."""


class CloseSpeech(msgspec.Struct, frozen=True, tag_field="type", tag="Close"):
    """Speak the rest and end."""


SpeakMessage: TypeAlias = Speak | Flush | Clear | CloseSpeech


def read_message(raw: str, kind: Any) -> Any:
    """A client's message.

    Raises:
        InvalidMessageError: it is none.
    """
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidMessageError(f"the message cannot be read: {error}") from error


@dataclass
class Transaction:
    """One stream or recording: what its messages say of it."""

    model: str
    request_id: str = field(default_factory=lambda: str(uuid4()))
    _created: datetime = field(default_factory=lambda: datetime.now(UTC))
    _digest: Any = field(default_factory=sha256)

    def note(self, audio: bytes) -> None:
        """The client has sent this."""
        self._digest.update(audio)

    @property
    def headers(self) -> dict[str, str]:
        """Of the HTTP answer."""
        return {"dg-request-id": self.request_id}

    def metadata(self, duration_s: float) -> dict[str, Any]:
        """Of all of it."""
        return {
            "transaction_key": "deprecated",
            "request_id": self.request_id,
            "sha256": self._digest.hexdigest(),
            "created": self._created.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "duration": duration_s,
            "channels": 1,
            "models": [self.model],
            "model_info": {self.model: self._model_info},
        }

    @property
    def voice_metadata(self) -> dict[str, Any]:
        """The first message of a voice."""
        return {
            "type": "Metadata",
            "request_id": self.request_id,
            "model_name": self.model,
            "model_version": _VERSION,
            "model_uuid": self.model,
        }

    def result(
        self,
        words: Sequence[Word],
        text: str,
        confidence: float,
        span_s: tuple[float, float],
        *,
        is_final: bool = False,
        speech_final: bool = False,
        from_finalize: bool = False,
    ) -> dict[str, Any]:
        """A ``Results`` message.

        Args:
            words: that were recognised.
            text: of them.
            confidence: 0 to 1.
            span_s: where the audio begins and ends that it speaks of (seconds).
            is_final: the text will not change.
            speech_final: a pause ended it.
            from_finalize: it answers ``Finalize``.
        """
        start_s, end_s = span_s
        return {
            "type": "Results",
            "channel_index": [0, 1],
            "duration": max(0.0, round(end_s - start_s, 3)),
            "start": start_s,
            "is_final": is_final,
            "speech_final": speech_final,
            "channel": {"alternatives": [alternative(text, confidence, words)]},
            "metadata": {
                "request_id": self.request_id,
                "model_info": self._model_info,
                "model_uuid": self.model,
            },
            "from_finalize": from_finalize,
        }

    @property
    def _model_info(self) -> dict[str, str]:
        return {"name": self.model, "version": _VERSION, "arch": _ARCH}


def alternative(text: str, confidence: float, words: Sequence[Word]) -> dict[str, Any]:
    """One reading."""
    return {
        "transcript": text,
        "confidence": confidence,
        "words": [
            {
                "word": word.text,
                "start": word.start_ms / 1000,
                "end": word.end_ms / 1000,
                "confidence": word.confidence,
                "punctuated_word": word.text,
            }
            for word in words
        ],
    }


def speech_started(at_ms: int) -> dict[str, Any]:
    """Speech has begun."""
    return {"type": "SpeechStarted", "channel": [0, 1], "timestamp": at_ms / 1000}


def utterance_end(last_word_end_s: float) -> dict[str, Any]:
    """No word has begun for a while."""
    return {"type": "UtteranceEnd", "channel": [0, 1], "last_word_end": last_word_end_s}


def counted(kind: Literal["Flushed", "Cleared"], number: int) -> dict[str, Any]:
    """A message of ``/v1/speak`` that is numbered."""
    return {"type": kind, "sequence_id": number}
