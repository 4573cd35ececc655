"""A transcription session's settings."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from parley.asr.messages import AsrOptions
from parley.protocol import VadOptions
from parley_gateway.apis.realtime import session_fields as fields
from parley_gateway.apis.realtime.client_events import refusal_of_field
from parley_gateway.apis.realtime.server_events import ClientEventError, new_id
from parley_gateway.apis.realtime.session_config import echo_of, format_of, pause_ms, threshold_of

_LONGEST_PAUSE_MS = 5_000
"""The recogniser takes no longer one."""


class _Audio(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    input: fields.AudioIn | UnsetType | None = UNSET


class _Fields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["realtime", "transcription"] | UnsetType = UNSET
    audio: _Audio | UnsetType | None = UNSET
    include: list[str] | UnsetType | None = UNSET


class TranscriptionConfig:
    """One session's settings.

    Args:
        given: What the client wants from the beginning.

    Raises:
        Refusal: that cannot be had.
    """

    def __init__(self, given: Mapping[str, Any] | None = None) -> None:
        self._detection: fields.TurnDetection | None = fields.ServerVad()
        self._transcription = fields.Transcription()
        self.body: dict[str, Any] = {
            "type": "transcription",
            "object": "realtime.transcription_session",
            "id": new_id("sess"),
            "include": None,
            "audio": {
                "input": {
                    "format": {"type": "audio/pcm", "rate": 24_000},
                    "noise_reduction": None,
                    "transcription": {},
                    "turn_detection": echo_of(self._detection),
                }
            },
        }
        if given:
            self.change(given)

    def echo(self) -> dict[str, Any]:
        """The whole session, as the client is told."""
        return copy.deepcopy(self.body)

    @property
    def input_format(self) -> str:
        """OpenAI's name of it."""
        name: str = self.body["audio"]["input"]["format"]["type"]
        return name

    @property
    def detects(self) -> bool:
        """Whether pauses end a turn; else the client says when."""
        return self._detection is not None

    @property
    def padding_ms(self) -> int:
        """Audio before the first sound that counts to a turn."""
        detection = self._detection
        return (detection.prefix_padding_ms or 0) if isinstance(detection, fields.ServerVad) else 0

    def options(self) -> AsrOptions:
        """What the recogniser is asked for."""
        detection = self._detection
        vad = VadOptions()
        if isinstance(detection, fields.ServerVad):
            vad = VadOptions(
                threshold=threshold_of(detection), silence_ms=min(pause_ms(detection), _LONGEST_PAUSE_MS)
            )
        given = self._transcription
        return AsrOptions(vad=vad, language=given.language or "en", words=False, phrases=given.keywords or [])

    def change(self, given: Mapping[str, Any]) -> None:
        """Take a ``session.update``: all of it or nothing.

        Raises:
            Refusal: something in it cannot be done.
        """
        try:
            wanted = msgspec.convert(given, _Fields)
        except msgspec.ValidationError as error:
            raise refusal_of_field(error, "session") from error
        if wanted.type == "realtime":
            message = "A transcription session cannot become a realtime session; connect without intent."
            raise ClientEventError(message, param="session.type")
        if wanted.include is not UNSET:
            self.body["include"] = wanted.include
        if wanted.audio and wanted.audio.input:
            self._take_input(wanted.audio.input)

    def _take_input(self, audio: fields.AudioIn) -> None:
        body = self.body["audio"]["input"]
        if audio.format:
            body["format"] = format_of(audio.format)
        if audio.noise_reduction is not UNSET:
            body["noise_reduction"] = audio.noise_reduction
        if audio.transcription:
            self._transcription = audio.transcription
            body["transcription"] = msgspec.to_builtins(audio.transcription)
        if audio.turn_detection is not UNSET:
            self._detection = audio.turn_detection
            body["turn_detection"] = echo_of(audio.turn_detection)
