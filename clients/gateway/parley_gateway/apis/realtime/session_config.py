"""A session's settings in OpenAI's format, and the agent's options for them."""

from __future__ import annotations

import copy
import re
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from parley import protocol
from parley.tools.schema import TOOL_NAME
from parley_gateway.apis.realtime.client_events import refusal_of_field
from parley_gateway.apis.realtime.mcp_tools import MOST_SERVERS, McpTool, read_mcp_tool
from parley_gateway.apis.realtime.server_events import ClientEventError, new_id, unsupported
from parley_gateway.apis.settings import RealtimeSettings
from parley_gateway.gateway import Gateway
from parley_gateway.openai_voices import OPENAI_VOICES
from parley_gateway.security.principal import Principal

DEFAULT_MODEL = "parley"
_AGENT_NAME = re.compile(protocol.AGENT_NAME)
MAX_TOOLS = 128
"""OpenAI's limit; the agent's own, ``max_tools``, is lower."""
_MIN_PAUSE_MS = 100
_FIRST_PAUSE_MS = 200
"""A pause after which a response can be generated; it is withheld until the turn is over."""
_EAGERNESS: Mapping[str | None, Literal["eager", "normal", "patient"]] = {
    "low": "patient",
    "medium": "normal",
    "high": "eager",
}

Fraction: TypeAlias = Annotated[float, Meta(gt=0, lt=1)]
Milliseconds: TypeAlias = Annotated[int, Meta(ge=0, le=10_000)]


class Format(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An audio format; PCM is 16 bits at 24 kHz, the others are 8 bits at 8 kHz."""

    type: Literal["audio/pcm", "audio/pcmu", "audio/pcma"]
    rate: Literal[24_000] | None = None


class ServerVad(msgspec.Struct, frozen=True, tag_field="type", tag="server_vad", forbid_unknown_fields=True):
    """A pause of a fixed length ends the user's turn."""

    threshold: Fraction | None = 0.5
    prefix_padding_ms: Milliseconds | None = 300
    silence_duration_ms: Milliseconds | None = 500
    idle_timeout_ms: Annotated[int, Meta(ge=5_000, le=30_000)] | None = None
    create_response: bool | None = True
    interrupt_response: bool | None = True


class SemanticVad(
    msgspec.Struct, frozen=True, tag_field="type", tag="semantic_vad", forbid_unknown_fields=True
):
    """The turn model ends the user's turn from words, audio and silence."""

    eagerness: Literal["low", "medium", "high", "auto"] | None = "auto"
    create_response: bool | None = True
    interrupt_response: bool | None = True


TurnDetection: TypeAlias = ServerVad | SemanticVad


class InputTranscription(msgspec.Struct, frozen=True, omit_defaults=True):
    """Requests transcripts; other fields are ignored."""

    model: str | None = None
    language: str | None = None
    prompt: str | None = None
    keywords: list[str] | None = None


class AudioIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the user's audio."""

    format: Format | UnsetType | None = UNSET
    noise_reduction: dict[str, Any] | UnsetType | None = UNSET
    transcription: InputTranscription | UnsetType | None = UNSET
    turn_detection: TurnDetection | UnsetType | None = UNSET


class NamedVoice(msgspec.Struct, frozen=True):
    """A voice by its id."""

    id: str


class AudioOut(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the agent's audio."""

    format: Format | UnsetType | None = UNSET
    voice: str | NamedVoice | UnsetType | None = UNSET
    speed: float | UnsetType | None = UNSET


class SessionAudio(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the audio in both directions."""

    input: AudioIn | UnsetType | None = UNSET
    output: AudioOut | UnsetType | None = UNSET


class FunctionTool(msgspec.Struct, frozen=True):
    """A function that the client runs."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class StoredPrompt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An agent that the server defines."""

    id: Annotated[str, Meta(min_length=1, max_length=protocol.MAX_AGENT_NAME)]
    version: str | None = None
    variables: dict[str, Any] | None = None


class TranscriptionAudio(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the audio of a transcription session."""

    input: AudioIn | UnsetType | None = UNSET


class TranscriptionSessionFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fields of a transcription session; those without a value stay unchanged."""

    type: Literal["realtime", "transcription"] | UnsetType = UNSET
    audio: TranscriptionAudio | UnsetType | None = UNSET
    include: list[str] | UnsetType | None = UNSET


class SessionFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fields of a realtime session; those without a value stay unchanged."""

    type: Literal["realtime", "transcription"] | UnsetType = UNSET
    model: str | UnsetType | None = UNSET
    output_modalities: Annotated[list[Literal["text", "audio"]], Meta(min_length=1)] | UnsetType | None = (
        UNSET
    )
    instructions: str | UnsetType | None = UNSET
    audio: SessionAudio | UnsetType | None = UNSET
    tools: Annotated[list[dict[str, Any]], Meta(max_length=MAX_TOOLS)] | UnsetType | None = UNSET
    tool_choice: Any = UNSET
    max_output_tokens: Annotated[int, Meta(ge=1)] | Literal["inf"] | UnsetType | None = UNSET
    parallel_tool_calls: bool | UnsetType | None = UNSET
    prompt: StoredPrompt | UnsetType | None = UNSET
    reasoning: Any = UNSET
    tracing: Any = UNSET
    truncation: Any = UNSET
    include: list[str] | UnsetType | None = UNSET


class InputConfig:
    """What sessions of both types have: OpenAI's session object, and the settings of the user's audio."""

    FIELDS: ClassVar[type[SessionFields | TranscriptionSessionFields]]
    TYPE_REFUSAL: ClassVar[str]
    """The refusal of an update to the other type."""
    UNDETECTED_PADDING_MS: ClassVar[int]

    def __init__(self, body: dict[str, Any], *, webrtc: bool = False) -> None:
        self.body = body
        """The session object of server events; it is not changed, only replaced."""
        self.detection: TurnDetection | None = ServerVad()
        """None: the client ends turns."""
        self.transcription: InputTranscription | None = None
        self.body["audio"] = {
            "input": {
                **({} if webrtc else {"format": {"type": "audio/pcm", "rate": 24_000}}),
                "noise_reduction": None,
                "transcription": None,
                "turn_detection": echo_of(self.detection),
            }
        }

    @property
    def input_format(self) -> str:
        """OpenAI's name of the input format."""
        return _type_of(self.body["audio"]["input"])

    @property
    def wants_logprobs(self) -> bool:
        """Whether the user's transcripts have log probabilities."""
        return "item.input_audio_transcription.logprobs" in (self.body["include"] or ())

    @property
    def padding_ms(self) -> int:
        """Audio before the first speech that belongs to the user's turn."""
        if isinstance(self.detection, ServerVad):
            return self.detection.prefix_padding_ms or 0
        return self.UNDETECTED_PADDING_MS

    def change(self, given: Mapping[str, Any]) -> None:
        """Apply a ``session.update``, or raise ClientEventError and change nothing."""
        try:
            fields = msgspec.convert(given, self.FIELDS)
        except msgspec.ValidationError as error:
            raise refusal_of_field(error, self.FIELDS, "session") from error
        if fields.type not in (UNSET, self.body["type"]):
            raise ClientEventError(self.TYPE_REFUSAL, param="session.type")
        before = copy.copy(self)
        audio = {direction: dict(settings) for direction, settings in self.body["audio"].items()}
        self.body = {**self.body, "audio": audio}
        try:
            self._apply(fields)
        except ClientEventError:
            self.restore(before)
            raise

    def restore(self, before: Self) -> None:
        """Take the state of a copy that was made before a change."""
        self.__dict__.update(before.__dict__)

    def _apply(self, fields: Any) -> None:
        raise NotImplementedError

    def _apply_input(self, audio: AudioIn) -> None:
        body = self.body["audio"]["input"]
        if audio.format and "format" in body:
            body["format"] = _echo_of_format(audio.format)
        if audio.noise_reduction is not UNSET:
            body["noise_reduction"] = audio.noise_reduction
        if audio.transcription is not UNSET:
            self.transcription = audio.transcription
            body["transcription"] = msgspec.to_builtins(audio.transcription)
        if audio.turn_detection is not UNSET:
            self.detection = audio.turn_detection
            body["turn_detection"] = echo_of(audio.turn_detection)


class SessionConfig(InputConfig):
    """One session's settings.

    ``voices`` maps OpenAI's names to the synthesizer's. The session ends at the latest at ``expires_at``
    (seconds since 1970). Over ``webrtc`` the settings have no audio formats. ``agent`` is the name of the
    agent that ``model`` means; empty: the server's own.
    """

    FIELDS = SessionFields
    TYPE_REFUSAL = (
        "A realtime session cannot become a transcription session; connect with intent=transcription."
    )
    UNDETECTED_PADDING_MS = 300

    def __init__(
        self,
        session_id: str,
        model: str,
        *,
        voices: Mapping[str, str] | None = None,
        expires_at: int = 0,
        webrtc: bool = False,
        agent: str = "",
        settings: RealtimeSettings | None = None,
    ) -> None:
        body: dict[str, Any] = {
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
        }
        super().__init__(body, webrtc=webrtc)
        output_format = {} if webrtc else {"format": {"type": "audio/pcm", "rate": 24_000}}
        self.body["audio"]["output"] = {**output_format, "voice": "alloy", "speed": 1.0}
        self._voices = dict(voices or {})
        self._webrtc = webrtc
        self.model_agent = agent
        """The agent that ``model`` means; empty: the server's own."""
        self._has_own_voice = False
        self._has_own_detection = False
        self._instructions: str | None = None
        self._functions: list[protocol.Tool] = []
        self.settings = settings or RealtimeSettings()
        """Of the gateway."""
        self.mcp: list[McpTool] = []
        """Servers whose tools the agent may call."""
        self.mcp_functions: list[protocol.Tool] = []
        """Their tools, once they were listed."""

    def given(self) -> dict[str, Any]:
        """Settings with which :meth:`change` makes another one equal to this one."""
        fixed = (
            "type",
            "object",
            "id",
            "expires_at",
            *(("instructions",) if self._instructions is None else ()),
        )
        audio = self.body["audio"]
        if not self._has_own_detection:
            own = {name: value for name, value in audio["input"].items() if name != "turn_detection"}
            audio = {**audio, "input": own}
        functions = [tool for tool in self.body["tools"] if tool["type"] == "function"]
        tools = functions + [msgspec.to_builtins(server) for server in self.mcp]  # with their secrets
        known = {name: value for name, value in self.body.items() if name not in fixed}
        return known | {"audio": audio, "tools": tools}

    @property
    def agent(self) -> str:
        """Name of the session's agent; empty: the server's own."""
        prompt = self.body["prompt"]
        return self.model_agent if prompt is None else str(prompt["id"])

    @property
    def writes_only(self) -> bool:
        """Whether responses are text."""
        return bool(self.body["output_modalities"] == ["text"])

    @property
    def output_format(self) -> str:
        """OpenAI's name of the output format."""
        return _type_of(self.body["audio"]["output"])

    @property
    def idle_timeout_ms(self) -> int | None:
        """Silence of the user after which the agent speaks; None: never."""
        return self.detection.idle_timeout_ms if isinstance(self.detection, ServerVad) else None

    def _apply(self, fields: SessionFields) -> None:
        self._apply_plain(fields)
        if fields.tools is not UNSET:
            self._apply_tools(fields.tools or [])
        if fields.audio:
            self._apply_input(fields.audio.input or AudioIn())
            self._apply_output(fields.audio.output or AudioOut())

    def _apply_plain(self, fields: SessionFields) -> None:
        body = self.body
        if fields.model:
            body["model"] = fields.model
        if fields.output_modalities:
            body["output_modalities"] = ["text"] if fields.output_modalities == ["text"] else ["audio"]
        if fields.instructions is not UNSET:
            self._instructions = fields.instructions
            body["instructions"] = fields.instructions or ""
        if fields.tool_choice is not UNSET and fields.tool_choice is not None:
            read_tool_choice(fields.tool_choice, "session.tool_choice")
            body["tool_choice"] = fields.tool_choice
        if fields.max_output_tokens is not UNSET:
            body["max_output_tokens"] = fields.max_output_tokens or "inf"
        if fields.prompt is not UNSET:
            self._apply_prompt(fields.prompt)
        for name in ("tracing", "truncation", "include", "reasoning", "parallel_tool_calls"):
            value = getattr(fields, name)
            if value is not UNSET:
                body[name] = value

    def _apply_prompt(self, prompt: StoredPrompt | None) -> None:
        for name in ("version", "variables"):
            if prompt is not None and getattr(prompt, name):
                raise unsupported(f"'{name}' of a prompt is", f"session.prompt.{name}")
        self.body["prompt"] = None if prompt is None else {"id": prompt.id}

    def _apply_input(self, audio: AudioIn) -> None:
        super()._apply_input(audio)
        if audio.turn_detection is not UNSET:
            self._has_own_detection = True

    def _apply_tools(self, tools: list[dict[str, Any]]) -> None:
        servers = [
            read_mcp_tool(tool, f"session.tools[{index}]", self.settings)
            for index, tool in enumerate(tools)
            if _is_server(tool)
        ]
        labels = [server.server_label for server in servers]
        if len(servers) > MOST_SERVERS or len(set(labels)) < len(labels):
            message = f"Invalid value: at most {MOST_SERVERS} MCP servers, each with a label of its own."
            raise ClientEventError(message, code="invalid_value", param="session.tools")
        functions = read_tools(tools, "session.tools", is_left_out=_is_server)
        self._functions, self.mcp = functions, servers
        self.body["tools"] = [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
            }
            for tool in functions
        ] + [server.echo() for server in servers]

    def has_function(self, name: str) -> bool:
        """Whether the client runs a tool."""
        return any(tool.name == name for tool in self._functions)

    def _apply_output(self, audio: AudioOut) -> None:
        body = self.body["audio"]["output"]
        if audio.format and "format" in body:
            body["format"] = _echo_of_format(audio.format)
        if audio.voice:
            self._has_own_voice = True
            body["voice"] = audio.voice.id if isinstance(audio.voice, NamedVoice) else audio.voice
        if audio.speed is not UNSET and audio.speed not in (None, 1.0):
            raise unsupported("A speed other than 1.0 is", "session.audio.output.speed")

    def start(self) -> protocol.Start:
        """The options that open the agent's session."""
        language = self.transcription.language if self.transcription else None
        rate = 48_000 if self._webrtc else 24_000 if self.output_format == "audio/pcm" else 8_000
        return protocol.Start(
            **self._agent_fields(),
            agent=self.agent,
            language=language or "en",
            output_sample_rate=rate,
            greeting="",
        )

    def update_since(self, before: protocol.Start) -> tuple[protocol.Start, protocol.Update | None]:
        """The agent's options after the changes since ``before``, and the update; None: nothing changed."""
        now = self._agent_fields()
        changed = {name: value for name, value in now.items() if value != getattr(before, name)}
        after = msgspec.structs.replace(before, **changed)
        return after, protocol.Update(**changed) if changed else None

    def _agent_fields(self) -> dict[str, Any]:
        limit = self.body["max_output_tokens"]
        keywords = self.transcription.keywords if self.transcription else None
        return {
            # Frameworks send empty instructions where an application has none.
            "system_prompt": (self._instructions or None) if self.agent else self._instructions,
            "tools": [] if self.body["tool_choice"] == "none" else self._tools(),
            "must_call": read_tool_choice(self.body["tool_choice"], "session.tool_choice"),
            "voice": self._voice(),
            "phrases": keywords or [],
            "output": "text" if self.writes_only else "audio",
            "sampling": protocol.SamplingOptions(max_tokens=limit if isinstance(limit, int) else None),
            **self._turn_fields(),
        }

    def _tools(self) -> list[protocol.Tool]:
        return [*self._functions, *(tool for tool in self.mcp_functions if not self.has_function(tool.name))]

    def _turn_fields(self) -> dict[str, Any]:
        """Options of turns and interruptions; those of an agent where the client has chosen none."""
        is_chosen = not self.agent or self._has_own_detection
        interrupts = self.detection is None or self.detection.interrupt_response is not False
        return {
            "vad": vad_of(self.detection, _FIRST_PAUSE_MS) if is_chosen else protocol.VadOptions(),
            "turn": _turn_of(self.detection) if is_chosen else protocol.TurnOptions(),
            "barge_in": protocol.BargeInOptions(enabled=interrupts, pause_playback=self._webrtc),
            "silence": protocol.SilenceOptions(
                prompt_after_ms=self.idle_timeout_ms or (None if self.agent else 0)
            ),
        }

    def _voice(self) -> str | None:
        name: str = self.body["audio"]["output"]["voice"]
        if name in self._voices:
            return self._voices[name]
        return None if not self._has_own_voice or name in OPENAI_VOICES else name


def _is_server(tool: Any) -> bool:
    return isinstance(tool, dict) and tool.get("type") == "mcp"


def read_tools(
    tools: list[Any], path: str, *, is_left_out: Callable[[Any], bool] = lambda _: False
) -> list[protocol.Tool]:
    """The agent's tools for OpenAI's ``tools`` at ``path``, or raise ClientEventError."""
    functions = []
    for index, tool in enumerate(tools):
        at = f"{path}[{index}]"
        if is_left_out(tool):
            continue
        if isinstance(tool, dict) and tool.get("type", "function") != "function":
            raise unsupported(f"Tools of type {tool['type']!r} are", f"{at}.type")
        try:
            function = msgspec.convert(tool, FunctionTool)
        except msgspec.ValidationError as error:
            raise refusal_of_field(error, FunctionTool, at) from error
        functions.append(
            protocol.Tool(
                name=function.name,
                description=function.description or "",
                parameters=function.parameters or {},
            )
        )
    return functions


def read_tool_choice(choice: Any, path: str) -> str:
    """``must_call`` of the agent for OpenAI's ``tool_choice`` at ``path``, or raise ClientEventError."""
    match choice:
        case "auto" | "none":
            return ""
        case "required":
            return protocol.ANY_TOOL
        case {"type": "function", "name": str(name)} if TOOL_NAME.fullmatch(name):
            return name
    raise unsupported("A tool choice of this kind is", path)


def _type_of(direction: Mapping[str, Any]) -> str:
    name: str = direction.get("format", {}).get("type", "audio/pcm")
    return name


def _echo_of_format(wanted: Format) -> dict[str, Any]:
    return {"type": wanted.type, "rate": 24_000} if wanted.type == "audio/pcm" else {"type": wanted.type}


def _pause_ms(detection: ServerVad) -> int:
    """The pause that ends a turn."""
    pause_ms = detection.silence_duration_ms
    return max(_MIN_PAUSE_MS, 500 if pause_ms is None else pause_ms)


def vad_of(detection: TurnDetection | None, max_pause_ms: int) -> protocol.VadOptions:
    """The agent's options of voice activity detection."""
    if not isinstance(detection, ServerVad):
        return protocol.VadOptions()
    threshold = 0.5 if detection.threshold is None else detection.threshold
    return protocol.VadOptions(threshold=threshold, silence_ms=min(_pause_ms(detection), max_pause_ms))


def _turn_of(detection: TurnDetection | None) -> protocol.TurnOptions:
    if detection is None:
        return protocol.TurnOptions(detection="manual", answer=False)
    answers = detection.create_response is not False
    if isinstance(detection, SemanticVad):
        return protocol.TurnOptions(eagerness=_EAGERNESS.get(detection.eagerness, "normal"), answer=answers)
    silence_ms = _pause_ms(detection)
    return protocol.TurnOptions(
        eagerness="normal",
        complete_ms=silence_ms,
        incomplete_ms=silence_ms,
        unfinished_ms=silence_ms,
        limit_ms=silence_ms,
        answer=answers,
    )


def echo_of(detection: TurnDetection | None) -> dict[str, Any] | None:
    """Turn detection in server events, with defaults."""
    if detection is None:
        return None
    defaults = type(detection)()
    values = {
        name: getattr(defaults, name) if value is None else value
        for name, value in msgspec.structs.asdict(detection).items()
    }
    return {"type": "server_vad" if isinstance(detection, ServerVad) else "semantic_vad", **values}


async def first_config(
    gateway: Gateway,
    principal: Principal,
    model: str | None,
    given: Mapping[str, Any],
    *,
    webrtc: bool = False,
) -> SessionConfig:
    """The initial settings of a session.

    Args:
        gateway: has the settings, and asks the servers for the agents that they define.
        principal: whose session it is.
        model: of the request; ``given`` may have another one, which counts.
        given: settings that the client has given in advance.
        webrtc: whether audio is sent over RTP.

    Raises:
        ClientEventError: ``given`` is refused.
        NotPermittedError: the client may not call the agent.
        UnknownAgentError: the prompt is no agent.
        ParleyError: ``model`` may be an agent, and no server says which it defines.
    """
    settings = gateway.settings.realtime
    named = given.get("model")
    model = (named if isinstance(named, str) else model) or DEFAULT_MODEL
    agent = None
    if _AGENT_NAME.fullmatch(model):
        agent = await gateway.descriptions.find_agent(lambda one: one.name == model)
    config = SessionConfig(
        new_id("sess"),
        model,
        voices=settings.voices,
        expires_at=round(time.time() + settings.session_s),
        webrtc=webrtc,
        agent="" if agent is None else agent.name,
        settings=settings,
    )
    if given:
        config.change(given)
    if config.agent:
        principal.check_agent(config.agent)
        await gateway.descriptions.check(agent=config.agent, may_call=principal.may_call)
    return config
