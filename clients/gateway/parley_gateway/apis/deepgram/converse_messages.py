"""What clients of ``/v1/agent/converse`` say. Fields of Deepgram's that are not here have no effect."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import msgspec

from parley import protocol
from parley.errors import InvalidMessageError
from parley.languages import without_region
from parley_client.options import check_size, check_text
from parley_gateway.apis.deepgram.messages import ForceEndTurn, KeepAlive
from parley_gateway.apis.deepgram.query import RAW, FluxOptions, Term, own_voice
from parley_gateway.audio.codecs import AudioFormat
from parley_gateway.bodies import read_options


class AgentAudioFormat(msgspec.Struct, frozen=True):
    """The format of either direction."""

    encoding: Literal["linear16", "mulaw", "alaw"] = "linear16"
    sample_rate: int = 24_000
    container: Literal["none"] = "none"

    @property
    def form(self) -> AudioFormat:
        """Raises UnsupportedSampleRateError."""
        return AudioFormat(RAW[self.encoding], self.sample_rate)


class AgentAudioFormats(msgspec.Struct, frozen=True):
    """The formats of both directions."""

    input: AgentAudioFormat = AgentAudioFormat()
    output: AgentAudioFormat = AgentAudioFormat()


class ListenProvider(msgspec.Struct, frozen=True):
    """How the user's turns are recognised: as in :class:`FluxOptions`."""

    language: protocol.Language | None = None
    keyterms: list[Term] | None = None
    eot_threshold: float | None = None
    eot_timeout_ms: int | None = None

    @property
    def turn(self) -> protocol.TurnOptions:
        """When turns end; raises InvalidMessageError."""
        given = {"eot_threshold": self.eot_threshold, "eot_timeout_ms": self.eot_timeout_ms}
        options = {name: value for name, value in given.items() if value is not None}
        return read_options({"model": "flux-general-en", **options}, FluxOptions).turn(answer=True)


class Listen(msgspec.Struct, frozen=True):
    """Holds the provider."""

    provider: ListenProvider = ListenProvider()


class ClientFunction(msgspec.Struct, frozen=True):
    """A function of the client."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}
    endpoint: Any = None
    """Refused: functions are called at the client only."""


class ThinkProvider(msgspec.Struct, frozen=True):
    """Of the language model, which is the server's."""

    temperature: float | None = None


class Think(msgspec.Struct, frozen=True):
    """What the language model gets."""

    provider: ThinkProvider = ThinkProvider()
    prompt: str | None = None
    functions: Annotated[list[ClientFunction], msgspec.Meta(max_length=128)] | None = None

    @property
    def sampling(self) -> protocol.SamplingOptions:
        """Of the language model."""
        return protocol.SamplingOptions(temperature=self.provider.temperature)


class SpeakProvider(msgspec.Struct, frozen=True):
    """The voice."""

    model: str = ""


class SpeakSettings(msgspec.Struct, frozen=True):
    """Holds the provider."""

    provider: SpeakProvider = SpeakProvider()

    @property
    def voice(self) -> str | None:
        """None: the default."""
        return own_voice(self.provider.model)


class HistoryMessage(msgspec.Struct, frozen=True):
    """What was said before; calls of functions are refused."""

    role: Literal["user", "assistant"]
    content: str


class AgentContext(msgspec.Struct, frozen=True):
    """The conversation so far."""

    messages: Annotated[list[HistoryMessage], msgspec.Meta(max_length=256)] = []


ThinkList: TypeAlias = Think | Annotated[list[Think], msgspec.Meta(min_length=1, max_length=16)]
SpeakList: TypeAlias = (
    SpeakSettings | Annotated[list[SpeakSettings], msgspec.Meta(min_length=1, max_length=16)]
)
_ProviderT = TypeVar("_ProviderT", Think, SpeakSettings)


def first_of(providers: _ProviderT | list[_ProviderT]) -> _ProviderT:
    """The one that is used; the rest are for failures, which the server handles with its own models."""
    return providers[0] if isinstance(providers, list) else providers


class ConverseAgent(msgspec.Struct, frozen=True):
    """The agent."""

    language: protocol.Language | None = None
    listen: Listen | None = None
    think: ThinkList | None = None
    speak: SpeakList | None = None
    greeting: str | None = None
    context: AgentContext | None = None


class ConverseSettings(msgspec.Struct, frozen=True, tag_field="type", tag="Settings"):
    """Opens the conversation."""

    audio: AgentAudioFormats = AgentAudioFormats()
    agent: ConverseAgent | Annotated[str, msgspec.Meta(max_length=protocol.MAX_AGENT_NAME)] = ConverseAgent()
    """A name: an agent that the server defines."""

    @property
    def history(self) -> list[HistoryMessage]:
        """What was said before."""
        context = None if isinstance(self.agent, str) else self.agent.context
        return context.messages if context else []

    def start(self) -> protocol.Start:
        """The agent's options; raises InvalidInputError."""
        rate = self.audio.output.form.agent_rate
        # Clients drop what they have not played when the user interrupts, and cannot pause it.
        barge_in = protocol.BargeInOptions(pause_playback=False)
        if isinstance(self.agent, str):
            return protocol.Start(agent=self.agent, output_sample_rate=rate, barge_in=barge_in)
        agent, think = self.agent, first_of(self.agent.think or Think())
        for message in self.history:
            check_text("a message of the history", message.content)
        listen = (agent.listen or Listen()).provider
        start = protocol.Start(
            system_prompt=think.prompt,
            tools=_tools(think.functions or []),
            sampling=think.sampling,
            voice=first_of(agent.speak).voice if agent.speak else None,
            language=without_region(listen.language or agent.language or "en"),
            phrases=listen.keyterms or [],
            output_sample_rate=rate,
            turn=listen.turn,
            barge_in=barge_in,
            greeting=agent.greeting or "",
        )
        check_size(protocol.encode(start))
        return start


def _tools(functions: list[ClientFunction]) -> list[protocol.Tool]:
    if any(function.endpoint is not None for function in functions):
        raise InvalidMessageError("functions with an endpoint are not supported")
    return [
        protocol.Tool(name=one.name, description=one.description, parameters=one.parameters)
        for one in functions
    ]


class FunctionCallResponse(msgspec.Struct, frozen=True, tag_field="type"):
    """The output of a function."""

    id: str
    content: str


class InjectAgentMessage(msgspec.Struct, frozen=True, tag_field="type"):
    """Makes the agent speak a text; ``default``: only if neither side has a turn."""

    message: str
    behavior: Literal["default", "queue", "interrupt"] = "default"


class InjectUserMessage(msgspec.Struct, frozen=True, tag_field="type"):
    """A turn of the user as text."""

    content: str


class UpdatePrompt(msgspec.Struct, frozen=True, tag_field="type"):
    """Replaces the prompt; ``PromptUpdated`` follows."""

    prompt: str


class UpdateSpeak(msgspec.Struct, frozen=True, tag_field="type"):
    """Changes the voice; ``SpeakUpdated`` follows."""

    speak: SpeakList


class UpdateThink(msgspec.Struct, frozen=True, tag_field="type"):
    """Replaces the prompt and the functions that are given; ``ThinkUpdated`` follows."""

    think: ThinkList

    @property
    def update(self) -> protocol.Update:
        """For the agent; raises InvalidMessageError."""
        think = first_of(self.think)
        return protocol.Update(
            system_prompt=msgspec.UNSET if think.prompt is None else think.prompt,
            tools=msgspec.UNSET if think.functions is None else _tools(think.functions),
            sampling=think.sampling if think.provider.temperature is not None else msgspec.UNSET,
        )


class UpdateListen(msgspec.Struct, frozen=True, tag_field="type"):
    """Replaces the thresholds, and the terms where they are given; ``ListenUpdated`` follows."""

    listen: Listen

    @property
    def update(self) -> protocol.Update:
        """For the agent; raises InvalidMessageError."""
        provider = self.listen.provider
        terms = provider.keyterms
        return protocol.Update(turn=provider.turn, phrases=msgspec.UNSET if terms is None else terms)


ConverseMessage: TypeAlias = (
    ConverseSettings
    | FunctionCallResponse
    | InjectAgentMessage
    | InjectUserMessage
    | UpdatePrompt
    | UpdateSpeak
    | UpdateThink
    | UpdateListen
    | ForceEndTurn
    | KeepAlive
)
