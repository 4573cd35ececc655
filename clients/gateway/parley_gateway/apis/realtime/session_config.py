"""A session's settings: as the client sets them, and as the agent takes them."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import UNSET

from parley import protocol
from parley_gateway.apis.realtime import session_fields as fields
from parley_gateway.apis.realtime.client_events import refusal_of_field
from parley_gateway.apis.realtime.server_events import ClientEventError, new_id, unsupported
from parley_gateway.apis.realtime.session_fields import SemanticVad, ServerVad, TurnDetection
from parley_gateway.gateway import Gateway
from parley_gateway.openai_voices import OPENAI_VOICES


class SessionConfig:
    """One session's settings.

    Args:
        session_id: OpenAI's id.
        model: What the client asked for; any name is taken.
        voices: OpenAI's names → the synthesizer's.
        expires_at: When the session ends at the latest (seconds since 1970).
        webrtc: Whether audio goes another way than the events.
    """

    def __init__(
        self,
        session_id: str,
        model: str,
        *,
        voices: Mapping[str, str] | None = None,
        expires_at: int = 0,
        webrtc: bool = False,
    ) -> None:
        self._voices = dict(voices or {})
        self._webrtc = webrtc
        self._given_voice = False
        self._instructions: str | None = None
        self._detection: fields.TurnDetection | None = fields.ServerVad()
        self._transcription: fields.Transcription | None = None
        self._functions: list[protocol.Tool] = []
        self.body: dict[str, Any] = {
            "type": "realtime",
            "object": "realtime.session",
            "id": session_id,
            "model": model,
            "output_modalities": ["audio"],
            "instructions": "",
            "tools": [],
            "tool_choice": "auto",
            "max_output_tokens": "inf",
            "tracing": None,
            "truncation": "auto",
            "prompt": None,
            "include": None,
            "expires_at": expires_at,
            "audio": {
                "input": {
                    "format": {"type": "audio/pcm", "rate": 24_000},
                    "noise_reduction": None,
                    "transcription": None,
                    "turn_detection": echo_of(self._detection),
                },
                "output": {"format": {"type": "audio/pcm", "rate": 24_000}, "voice": "alloy", "speed": 1.0},
            },
        }
        if webrtc:
            del self.body["audio"]["input"]["format"], self.body["audio"]["output"]["format"]

    # --- what the client reads --------------------------------------------------------------

    def echo(self) -> dict[str, Any]:
        """The whole session, as the client is told."""
        return copy.deepcopy(self.body)

    @property
    def writes_only(self) -> bool:
        """Whether answers are text."""
        return bool(self.body["output_modalities"] == ["text"])

    @property
    def input_format(self) -> str:
        """OpenAI's name of it."""
        return _type_of(self.body["audio"]["input"])

    @property
    def output_format(self) -> str:
        """OpenAI's name of it."""
        return _type_of(self.body["audio"]["output"])

    @property
    def detection(self) -> fields.TurnDetection | None:
        """None: the client says when a turn is over."""
        return self._detection

    @property
    def transcribes(self) -> bool:
        """Whether the client wants to read what the user says."""
        return self._transcription is not None

    @property
    def padding_ms(self) -> int:
        """Audio before the first sound that counts to the user's turn."""
        detection = self._detection
        return (detection.prefix_padding_ms or 0) if isinstance(detection, fields.ServerVad) else 300

    @property
    def idle_timeout_ms(self) -> int | None:
        """After so much silence the agent speaks; None: never."""
        return self._detection.idle_timeout_ms if isinstance(self._detection, fields.ServerVad) else None

    # --- what the client sets ---------------------------------------------------------------

    def change(self, given: Mapping[str, Any]) -> None:
        """Take a ``session.update``: all of it or nothing.

        Raises:
            Refusal: something in it cannot be done.
        """
        try:
            wanted = msgspec.convert(given, fields.SessionFields)
        except msgspec.ValidationError as error:
            raise refusal_of_field(error, "session") from error
        if wanted.type == "transcription":
            message = (
                "A realtime session cannot become a transcription session; connect with intent=transcription."
            )
            raise ClientEventError(message, code="invalid_value", param="session.type")
        before = copy.copy(self)
        self.body = copy.deepcopy(self.body)
        try:
            self._take(wanted)
        except ClientEventError:
            self.restore(before)
            raise

    def restore(self, before: SessionConfig) -> None:
        """Be again as a copy that was made before."""
        self.__dict__.update(before.__dict__)

    def _take(self, wanted: fields.SessionFields) -> None:
        self._take_plain(wanted)
        if wanted.tools is not UNSET:
            self._take_tools(wanted.tools or [])
        if wanted.audio:
            self._take_input(wanted.audio.input or fields.AudioIn())
            self._take_output(wanted.audio.output or fields.AudioOut())

    def _take_plain(self, wanted: fields.SessionFields) -> None:
        body = self.body
        if wanted.model:
            body["model"] = wanted.model
        if wanted.output_modalities:
            body["output_modalities"] = ["text"] if wanted.output_modalities == ["text"] else ["audio"]
        if wanted.instructions is not UNSET:
            self._instructions = wanted.instructions
            body["instructions"] = wanted.instructions or ""
        if wanted.tool_choice is not UNSET and wanted.tool_choice is not None:
            if wanted.tool_choice not in ("auto", "none"):
                raise unsupported("A tool choice other than 'auto' or 'none' is", "session.tool_choice")
            body["tool_choice"] = wanted.tool_choice
        if wanted.max_output_tokens is not UNSET:
            body["max_output_tokens"] = wanted.max_output_tokens or "inf"
        if wanted.prompt is not UNSET and wanted.prompt is not None:
            raise unsupported("Stored prompts are", "session.prompt")
        for name in ("tracing", "truncation", "include", "reasoning", "parallel_tool_calls"):
            value = getattr(wanted, name)
            if value is not UNSET:
                body[name] = value

    def _take_tools(self, tools: list[dict[str, Any]]) -> None:
        functions = []
        for index, tool in enumerate(tools):
            path = f"session.tools[{index}]"
            if tool.get("type", "function") != "function":
                raise unsupported(f"Tools of type {tool['type']!r} are", f"{path}.type")
            try:
                function = msgspec.convert(tool, fields.Function)
            except msgspec.ValidationError as error:
                raise refusal_of_field(error, path) from error
            functions.append(
                protocol.Tool(
                    name=function.name,
                    description=function.description or "",
                    parameters=function.parameters or {},
                )
            )
        self._functions = functions
        self.body["tools"] = [{"type": "function", **msgspec.to_builtins(tool)} for tool in functions]

    def _take_input(self, audio: fields.AudioIn) -> None:
        body = self.body["audio"]["input"]
        if audio.format and not self._webrtc:
            body["format"] = format_of(audio.format)
        if audio.noise_reduction is not UNSET:
            body["noise_reduction"] = audio.noise_reduction
        if audio.transcription is not UNSET:
            self._transcription = audio.transcription
            body["transcription"] = msgspec.to_builtins(audio.transcription)
        if audio.turn_detection is not UNSET:
            self._detection = audio.turn_detection
            body["turn_detection"] = echo_of(audio.turn_detection)

    def _take_output(self, audio: fields.AudioOut) -> None:
        body = self.body["audio"]["output"]
        if audio.format and not self._webrtc:
            body["format"] = format_of(audio.format)
        if audio.voice:
            self._given_voice = True
            body["voice"] = audio.voice.id if isinstance(audio.voice, fields.NamedVoice) else audio.voice
        if audio.speed is not UNSET and audio.speed not in (None, 1.0):
            raise unsupported("A speed other than 1.0 is", "session.audio.output.speed")

    # --- what the agent takes ---------------------------------------------------------------

    def start(self) -> protocol.Start:
        """How the agent's session is opened."""
        language = self._transcription.language if self._transcription else None
        rate = 48_000 if self._webrtc else 24_000 if self.output_format == "audio/pcm" else 8_000
        return protocol.Start(
            **self._agent_fields(), language=language or "en", output_sample_rate=rate, greeting=""
        )

    def update_since(self, before: protocol.Start) -> tuple[protocol.Start, protocol.Update | None]:
        """What has to change in an agent's session that is as ``before`` says.

        Returns:
            How it is then, and the change; None: there is none.
        """
        now = self._agent_fields()
        changed = {name: value for name, value in now.items() if value != getattr(before, name)}
        after = msgspec.structs.replace(before, **changed)
        return after, protocol.Update(**changed) if changed else None

    def _agent_fields(self) -> dict[str, Any]:
        limit = self.body["max_output_tokens"]
        keywords = self._transcription.keywords if self._transcription else None
        return {
            "system_prompt": self._instructions,
            "tools": [] if self.body["tool_choice"] == "none" else self._functions,
            "voice": self._voice(),
            "phrases": keywords or [],
            "output": "text" if self.writes_only else "audio",
            "vad": vad_of(self._detection),
            "turn": turn_of(self._detection),
            "barge_in": protocol.BargeInOptions(
                enabled=self._detection is None or self._detection.interrupt_response is not False,
                pause_playback=self._webrtc,
            ),
            "silence": protocol.SilenceOptions(prompt_after_ms=self.idle_timeout_ms or 0),
            "sampling": protocol.SamplingOptions(max_tokens=limit if isinstance(limit, int) else None),
        }

    def _voice(self) -> str | None:
        name: str = self.body["audio"]["output"]["voice"]
        if name in self._voices:
            return self._voices[name]
        return None if not self._given_voice or name in OPENAI_VOICES else name


def _type_of(direction: Mapping[str, Any]) -> str:
    name: str = direction.get("format", {}).get("type", "audio/pcm")
    return name


def format_of(wanted: fields.Format) -> dict[str, Any]:
    """A form of audio, as the client is told."""
    return {"type": wanted.type, "rate": 24_000} if wanted.type == "audio/pcm" else {"type": wanted.type}


_EAGERNESS: Mapping[str | None, Literal["eager", "normal", "patient"]] = {
    "low": "patient",
    "medium": "normal",
    "high": "eager",
}
_LEAST_PAUSE_MS = 100
_FIRST_PAUSE_MS = 200
"""After so much silence an answer can be begun, which is held back until the turn is certainly over."""


def pause_ms(detection: ServerVad) -> int:
    """The pause that ends a turn."""
    wanted = detection.silence_duration_ms
    return max(_LEAST_PAUSE_MS, 500 if wanted is None else wanted)


def threshold_of(detection: ServerVad) -> float:
    """Speech probability at which speech begins."""
    return 0.5 if detection.threshold is None else detection.threshold


def vad_of(detection: TurnDetection | None) -> protocol.VadOptions:
    """When sound counts as speech."""
    if not isinstance(detection, ServerVad):
        return protocol.VadOptions()
    silence_ms = min(pause_ms(detection), _FIRST_PAUSE_MS)
    return protocol.VadOptions(threshold=threshold_of(detection), silence_ms=silence_ms)


def turn_of(detection: TurnDetection | None) -> protocol.TurnOptions:
    """When a pause ends a turn; None: only the client does."""
    if detection is None:
        return protocol.TurnOptions(detection="manual", answer=False)
    answers = detection.create_response is not False
    if isinstance(detection, SemanticVad):
        return protocol.TurnOptions(eagerness=_EAGERNESS.get(detection.eagerness, "normal"), answer=answers)
    silence_ms = pause_ms(detection)
    return protocol.TurnOptions(
        eagerness="normal",
        complete_ms=silence_ms,
        incomplete_ms=silence_ms,
        unfinished_ms=silence_ms,
        limit_ms=silence_ms,
        answer=answers,
    )


def echo_of(detection: TurnDetection | None) -> dict[str, Any] | None:
    """How turns end, as the client is told: with what it has left out."""
    if detection is None:
        return None
    defaults = type(detection)()
    values = {
        name: getattr(defaults, name) if value is None else value
        for name, value in msgspec.structs.asdict(detection).items()
    }
    return {"type": "server_vad" if isinstance(detection, ServerVad) else "semantic_vad", **values}


DEFAULT_MODEL = "parley"


def first_config(
    gateway: Gateway, model: str | None, given: Mapping[str, Any], *, webrtc: bool = False
) -> SessionConfig:
    """The settings that a session begins with.

    Raises:
        Refusal: ``given`` cannot be had.
    """
    settings = gateway.settings.realtime
    config = SessionConfig(
        new_id("sess"),
        model or DEFAULT_MODEL,
        voices=settings.voices,
        expires_at=round(time.time() + settings.session_s),
        webrtc=webrtc,
    )
    if given:
        config.change(given)
    return config
