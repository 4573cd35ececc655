"""Deepgram's messages, responses and errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Literal, TypeAlias

import msgspec
from starlette.responses import JSONResponse, Response

from parley.errors import (
    InvalidAudioError,
    OverloadedError,
    ParleyError,
    SessionIdleError,
    ShuttingDownError,
)
from parley.logs import current_ids
from parley.protocol import Word
from parley_gateway.apis.realtime.server_events import REFUSED_CHANGES
from parley_gateway.errors import GatewayError, UnauthorizedError, headers_of, status_of
from parley_gateway.websocket import GOING_AWAY, Close, close_of

MAX_UPDATES = 16
"""Updates of the agent's session without an answer; it accepts as many."""
REFUSED_UPDATES = REFUSED_CHANGES | {"overloaded"}
"""Codes of the errors that such an update can cause."""
_ARCH = "parley"
_VERSION = "1"
_CODES = {
    401: "INVALID_AUTH",
    403: "INSUFFICIENT_PERMISSIONS",
    413: "PAYLOAD_ERROR",
    429: "TOO_MANY_REQUESTS",
}


def answer(error: ParleyError) -> Response:
    """The HTTP response for ``error``."""
    status = status_of(error)
    request_id = current_ids().request
    code = _CODES.get(status, "Bad Request" if status < 500 else "INTERNAL_SERVER_ERROR")
    message = "Invalid credentials." if isinstance(error, UnauthorizedError) else str(error) or error.code
    said = message.encode("ascii", "replace").decode().replace("\n", " ")
    headers = headers_of(error) | {"dg-request-id": request_id, "dg-error": said}
    return JSONResponse({"err_code": code, "err_msg": message, "request_id": request_id}, status, headers)


def close_for(error: ParleyError) -> Close:
    """How a WebSocket that failed with ``error`` is closed, with Deepgram's reason where there is one."""
    if isinstance(error, SessionIdleError):
        return Close(1011, "NET-0001")
    if isinstance(error, InvalidAudioError):
        return Close(1008, "DATA-0000")
    if isinstance(error, GatewayError | OverloadedError | ShuttingDownError):
        return close_of(error)
    return close_of(error) if status_of(error) < 500 else Close(1011, "NET-0000")


def message_of(error: ParleyError) -> dict[str, Any]:
    """The last message of a stream that failed."""
    close = GOING_AWAY if isinstance(error, ShuttingDownError) else close_for(error)
    text = str(error) or error.code
    texts = {"description": text, "message": text}
    return {"type": "Error", "variant": close.reason, "code": error.code, **texts}


class KeepAlive(msgspec.Struct, frozen=True, tag_field="type"):
    """Keeps the stream of a silent client open."""


class Finalize(msgspec.Struct, frozen=True, tag_field="type"):
    """Requests the transcript of all audio so far."""


class CloseStream(msgspec.Struct, frozen=True, tag_field="type"):
    """Ends the audio."""


ListenMessage: TypeAlias = KeepAlive | Finalize | CloseStream


class Configure(msgspec.Struct, frozen=True, tag_field="type"):
    """Changes thresholds or terms; what is left out stays. An invalid value is a ``ConfigureFailure``."""

    thresholds: dict[str, Any] | None = None
    keyterms: list[Any] | str | None = None
    language_hints: list[Any] | None = None
    """Refused unless they are the same: a stream keeps its language."""


class ForceEndTurn(msgspec.Struct, frozen=True, tag_field="type"):
    """Ends the turn."""


FluxMessage: TypeAlias = KeepAlive | Configure | ForceEndTurn | CloseStream


class Speak(msgspec.Struct, frozen=True, tag_field="type"):
    """Appends text."""

    text: str


class Flush(msgspec.Struct, frozen=True, tag_field="type"):
    """Ends the text; ``Flushed`` follows its audio."""


class Clear(msgspec.Struct, frozen=True, tag_field="type"):
    """Discards what was not spoken yet; ``Cleared`` follows."""


class CloseSpeech(msgspec.Struct, frozen=True, tag_field="type", tag="Close"):
    """Ends the stream after the remaining text."""


SpeakMessage: TypeAlias = Speak | Flush | Clear | CloseSpeech


@dataclass
class Transaction:
    """The ids and metadata of one stream or recording."""

    model: str
    request_id: str = field(default_factory=lambda: current_ids().request)
    _created: datetime = field(default_factory=lambda: datetime.now(UTC))
    _digest: Any = field(default_factory=sha256)

    def add_audio(self, audio: bytes) -> None:
        """Add audio of the client to the digest."""
        self._digest.update(audio)

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the HTTP response."""
        return {"dg-request-id": self.request_id}

    def metadata(self, duration_s: float) -> dict[str, Any]:
        """Metadata of all of the audio."""
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
        """The first message of a stream of speech."""
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
    ) -> dict[str, Any]:
        """A ``Results`` message for the audio from ``span_s[0]`` to ``span_s[1]``."""
        start_s, end_s = span_s
        return {
            "type": "Results",
            "channel_index": [0, 1],
            "duration": max(0.0, round(end_s - start_s, 3)),
            "start": start_s,
            "is_final": is_final,
            "speech_final": False,
            "channel": {"alternatives": [alternative(text, confidence, words)]},
            "metadata": {
                "request_id": self.request_id,
                "model_info": self._model_info,
                "model_uuid": self.model,
            },
            "from_finalize": False,
        }

    @property
    def _model_info(self) -> dict[str, str]:
        return {"name": self.model, "version": _VERSION, "arch": _ARCH}


def alternative(text: str, confidence: float, words: Sequence[Word]) -> dict[str, Any]:
    """A transcript with its words."""
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
    """A ``SpeechStarted`` message."""
    return {"type": "SpeechStarted", "channel": [0, 1], "timestamp": at_ms / 1000}


def utterance_end(last_word_end_s: float) -> dict[str, Any]:
    """An ``UtteranceEnd`` message: no word has begun for a while."""
    return {"type": "UtteranceEnd", "channel": [0, 1], "last_word_end": last_word_end_s}


def counted(kind: Literal["Flushed", "Cleared"], number: int) -> dict[str, Any]:
    """A numbered message of ``/v1/speak``."""
    return {"type": kind, "sequence_id": number}
