"""Deepgram's options in the URL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.datastructures import QueryParams

from parley import protocol
from parley.asr.messages import AsrOptions
from parley.errors import InvalidMessageError
from parley.languages import without_region
from parley.protocol import SilenceOptions, Start, TurnOptions, Update, VadOptions
from parley.turns.settings import MAX_SILENCE_MS
from parley_gateway.audio.codecs import AudioFormat, Encoding
from parley_gateway.audio.encoding import SpeechFormat
from parley_gateway.bodies import OptionsT, read_options

Term = Annotated[str, Meta(max_length=100)]
RAW: Mapping[str, Encoding] = MappingProxyType({"linear16": "pcm16", "mulaw": "ulaw", "alaw": "alaw"})
"""Audio without a container, by Deepgram's name."""

_TRUE, _FALSE = ("true", "1"), ("false", "0")
# Options that would change the response and are not supported; without effect while they are off.
_REFUSED = frozenset(
    "callback callback_method custom_intent custom_topic detect_entities detect_language diarize "
    "diarize_model dictation intents measurements multichannel paragraphs redact replace search sentiment "
    "summarize topics translate".split()
)
_THRESHOLDS = frozenset(("eot_threshold", "eager_eot_threshold", "eot_timeout_ms"))
_MIN_PAUSE_MS = 200
_MAX_PAUSE_MS = 5_000
_DEFAULT_RATE_HZ = 24_000
_G711_RATE_HZ = 8_000
_RATES_HZ: Mapping[SpeechFormat, int] = {
    "mp3": 22_050,
    "opus": 48_000,
    "flac": _DEFAULT_RATE_HZ,
    "aac": 22_050,
}
# The voices in requests of clients that changed only the address; they get the default voice.
_DEEPGRAM_VOICES = ("aura-", "aura2-", "flux-")


class InputAudio(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the client's audio."""

    encoding: Literal["linear16", "mulaw", "alaw", "ogg-opus", "flac"] | None = None
    """None, ``ogg-opus`` and ``flac``: the first bytes tell the container."""
    sample_rate: Annotated[int, Meta(ge=8_000, le=48_000)] = 16_000
    """Of raw audio."""

    @property
    def form(self) -> AudioFormat | None:
        """The format of raw audio; None: it has a container. Raises UnsupportedSampleRateError."""
        encoding = RAW.get(self.encoding or "")
        return AudioFormat(encoding, self.sample_rate) if encoding else None


class ListenOptions(InputAudio, frozen=True, kw_only=True):
    """Options of ``/v1/listen``. Others are ignored, or refused where they would change the response."""

    model: str = ""
    """Any: the gateway's settings name the model."""
    channels: Literal[1] = 1
    language: str = "en"
    """A tag such as ``en-US``; only the part before the hyphen counts."""
    interim_results: bool = False
    endpointing: Annotated[int, Meta(ge=0)] | bool | None = None
    """The pause that ends an utterance (milliseconds), at least 200; false: no text is ``speech_final``."""
    utterance_end_ms: Annotated[int, Meta(ge=0)] | None = None
    """Send ``UtteranceEnd`` after this time without a word (milliseconds)."""
    vad_events: bool = False
    """Send ``SpeechStarted``."""
    keyterm: list[Term] = []
    keywords: list[Term] = []
    """Expected names and words; numbers behind a colon are ignored."""
    utterances: bool = False
    """Split the transcript of a recording at pauses."""

    @property
    def base_language(self) -> str:
        """The language without its region."""
        return without_region(self.language)

    @property
    def phrases(self) -> list[str]:
        """Expected names and words."""
        terms = [*self.keyterm, *(keyword.partition(":")[0] for keyword in self.keywords)]
        return [term for term in terms if term.strip()]

    @property
    def asr(self) -> AsrOptions:
        """The recogniser's options."""
        pause = self.endpointing
        silence_ms = None
        if isinstance(pause, int) and not isinstance(pause, bool):
            silence_ms = min(max(pause, _MIN_PAUSE_MS), _MAX_PAUSE_MS)
        partial_ms = AsrOptions().partial_interval_ms if self.interim_results else 0
        return AsrOptions(
            vad=VadOptions(silence_ms=silence_ms),
            language=self.base_language,
            partial_interval_ms=partial_ms,
            phrases=self.phrases,
        )


class FluxOptions(InputAudio, frozen=True, kw_only=True):
    """Options of ``/v2/listen``. Others are ignored, or refused where they would change the response."""

    model: Literal["flux-general-en", "flux-general-multi"]
    language_hint: list[protocol.Language] = []
    """Of ``flux-general-multi``: the one language that is spoken."""
    eot_threshold: Annotated[float, Meta(ge=0.5, le=1)] | None = None
    """Probability from which a turn sounds complete. 1: only a timeout or the client ends turns. None: the
    server's choice."""
    eager_eot_threshold: Annotated[float, Meta(ge=0.3, le=0.9)] | None = None
    """Probability from which ``EagerEndOfTurn`` is sent, at most ``eot_threshold``. None: it is not sent."""
    eot_timeout_ms: Annotated[int, Meta(ge=500, le=MAX_SILENCE_MS)] = 5_000
    """Silence that ends a turn in any case."""
    keyterm: list[Term] = []
    """Expected names and words."""

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for options that exclude each other."""
        if len(self.language_hint) != (self.model == "flux-general-multi"):
            raise ValueError("flux-general-multi takes one language_hint, and flux-general-en none")
        if self.eot_threshold and (self.eager_eot_threshold or 0) > self.eot_threshold:
            raise ValueError("eager_eot_threshold is above eot_threshold")

    def changed(self, thresholds: Mapping[str, Any], keyterms: Sequence[Any] | None) -> FluxOptions:
        """These options with other thresholds (null: the default) and terms (None: the same).

        Raises:
            InvalidMessageError: a value is invalid.
        """
        given = msgspec.structs.asdict(self) | {
            name: thresholds[name] for name in _THRESHOLDS & {*thresholds}
        }
        if keyterms is not None:
            given["keyterm"] = keyterms
        return read_options({name: value for name, value in given.items() if value is not None}, FluxOptions)

    @property
    def start(self) -> Start:
        """The agent's options: it listens, and takes turns."""
        return Start(
            system_prompt="",  # a prompt would be read ahead
            greeting="",
            output="text",
            silence=SilenceOptions(prompt_after_ms=0, hang_up_after_ms=0),
            phrases=self.keyterm,
            turn=self.turn(),
            language=without_region(self.language_hint[0]) if self.language_hint else "en",
        )

    @property
    def update(self) -> Update:
        """What :meth:`changed` may have changed of it."""
        return Update(turn=self.turn(), phrases=self.keyterm)

    def turn(self, *, answer: bool = False) -> TurnOptions:
        """When turns end; ``answer``: whether the agent speaks."""
        limit_ms = self.eot_timeout_ms
        return TurnOptions(
            threshold=self.eot_threshold,
            complete_ms=limit_ms if self.eot_threshold == 1 else None,
            limit_ms=limit_ms,
            one_caller=None if answer else False,
            answer=answer,
        )


class SpeakOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of ``/v1/speak``."""

    model: str = ""
    """A voice of the gateway, or any of Deepgram, which means the default."""
    encoding: Literal["linear16", "mulaw", "alaw", "mp3", "opus", "flac", "aac"] | None = None
    container: Literal["none", "wav", "ogg"] | None = None
    sample_rate: Annotated[int, Meta(ge=8_000, le=48_000)] | None = None
    bit_rate: int | None = None
    """Ignored."""
    speed: Annotated[float, Meta(ge=1, le=1)] | None = None
    """Only 1 is supported."""


def read_query(query: QueryParams, kind: type[OptionsT]) -> OptionsT:
    """The options in a URL; raises InvalidMessageError for an invalid or unsupported one."""
    refused = [name for name in _REFUSED if any(value.lower() not in _FALSE for value in query.getlist(name))]
    if refused:
        raise InvalidMessageError(f"not supported: {', '.join(sorted(refused))}")
    lists = {"keyterm", "keywords", "language_hint"}
    fields = [field.name for field in msgspec.structs.fields(kind)]
    given: dict[str, Any] = {
        name: query.getlist(name) if name in lists else _value(query.getlist(name))
        for name in fields
        if name in query
    }
    return read_options(given, kind)


def _value(values: Sequence[str]) -> Any:
    text = values[-1]
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    return text


def own_voice(model: str) -> str | None:
    """The voice that ``model`` names; None: the default."""
    return None if not model or model.startswith(_DEEPGRAM_VOICES) else model


def raw_format(options: SpeakOptions) -> AudioFormat:
    """The raw format of a stream; raises InvalidMessageError or UnsupportedSampleRateError."""
    encoding = RAW.get(options.encoding or "linear16")
    if encoding is None or options.container not in (None, "none"):
        raise InvalidMessageError("a stream has no container, and is linear16, mulaw or alaw")
    default_hz = _DEFAULT_RATE_HZ if encoding == "pcm16" else _G711_RATE_HZ
    return AudioFormat(encoding, options.sample_rate or default_hz)


@dataclass(frozen=True)
class FileFormat:
    """The format of a file; raises UnsupportedSampleRateError."""

    form: SpeechFormat
    sample_rate: int

    def __post_init__(self) -> None:
        AudioFormat(sample_rate=self.sample_rate)  # checks the rate


def file_format(options: SpeakOptions) -> FileFormat | AudioFormat:
    """The format of a response; raises InvalidMessageError or UnsupportedSampleRateError."""
    encoding = options.encoding or "mp3"
    container = options.container
    raw = SpeakOptions(encoding=options.encoding, sample_rate=options.sample_rate)
    match encoding:
        case "mulaw" | "alaw":
            if container == "wav":
                raise InvalidMessageError("G.711 comes without a container: container=none")
            return raw_format(raw)
        case "linear16":
            if container == "none":
                return raw_format(raw)
            if container == "ogg":
                raise InvalidMessageError("linear16 comes in WAV, or without a container")
            return FileFormat("wav", options.sample_rate or _DEFAULT_RATE_HZ)
    own = {"opus": "ogg"}.get(encoding, "none")
    if container not in (None, own):
        raise InvalidMessageError(f"{encoding} comes with container={own}")
    rate = options.sample_rate or _RATES_HZ[encoding]
    if encoding == "opus" and rate != _RATES_HZ["opus"]:
        raise InvalidMessageError("opus comes at 48000 Hz")
    return FileFormat(encoding, rate)
