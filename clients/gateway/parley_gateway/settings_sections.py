"""Sections of the settings that no single module owns, and the kinds of numbers in all sections."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from parley.errors import InvalidInputError
from parley.logs import LogFormat
from parley.protocol import EndingOptions
from parley.runtime.drain import MAX_DEADLINE_S
from parley_gateway.instances import PATTERN
from parley_stages.synthesis import AUTO, read_names
from parley_stages.transcription import MAX_SECONDS

Seconds: TypeAlias = Annotated[float, Meta(gt=0)]
"""Above 0."""
Count: TypeAlias = Annotated[int, Meta(ge=1)]
"""At least 1."""
Size: TypeAlias = Annotated[int, Meta(ge=1)]
"""Bytes, at least 1."""
POSITIONAL = Meta(extra={"positional": True})
"""Of a list: an empty entry stands for a place, so that a variable's empty parts are not left out."""


def check_transfers(ending: EndingOptions) -> None:
    """Raise ValueError for a target that a telephone call cannot be transferred to."""
    if missing := [target.name for target in ending.transfers if not target.to]:
        raise ValueError(f"ending.transfers: {missing[0]!r} needs a number or an address in `to`")


class ListenSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Address and TLS."""

    host: str = "127.0.0.1"
    """Address to listen on; other than loopback it needs authentication, as does `public_url` or
    `security.trusted_proxies`."""
    port: Annotated[int, Meta(ge=0, le=65_535)] = 8080
    """0: any free one, which the start line names."""
    health_port: Annotated[int, Meta(ge=0, le=65_535)] | None = None
    """Second port, at the same address, for `/healthz`, `/readyz`, `/health`, `/ready` and `/metrics`
    only; 0: any free one. None: no such port."""
    metrics_port: Annotated[int, Meta(ge=0, le=65_535)] | None = None
    """Port for `/metrics` only, without a key: let only Prometheus reach it; 0: any free one. None: no
    such port."""
    metrics_host: str = ""
    """Address of that port. Empty: `listen.host`."""
    certificate: str = ""
    """PEM file with the certificate chain, read again when it changes; empty: plain HTTP."""
    key: str = ""
    """PEM file with its private key."""
    public_url: str = ""
    """The gateway's URL behind a proxy: `https://voice.example.com`; it needs authentication. Empty: that
    of the request."""
    instance: Annotated[str, Meta(pattern=PATTERN)] = ""
    """The gateway's name in the ids of its sessions: small letters, digits and `-`. Empty: eight
    characters, derived from `POD_NAME` or the host name."""
    peers: tuple[str, ...] = ()
    """All gateways behind the same address, this one too: `host:port` or `dns://name:port`. Requests of a
    session of another gateway are passed on to it ([several
    gateways](gateway.md#several-gateways-behind-one-address))."""
    drain_s: Annotated[float, Meta(ge=0, le=MAX_DEADLINE_S)] = 30.0
    """How long open calls may go on after SIGTERM, at most a day."""

    @property
    def is_encrypted(self) -> bool:
        """Whether clients use TLS, to here or to a proxy in front."""
        return bool(self.certificate) or self.public_url.startswith("https:")


class LogSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The log on standard error."""

    format: LogFormat = "text"
    """`json`: one object per line ([logs](observability.md#logs))."""


class LimitSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much is read and held for one connection."""

    connections: Count = 2_000
    """Open connections of this process, or fewer by its limit of descriptors
    ([connections](gateway.md#connections))."""
    connections_per_address: Count = 500
    """Open connections of one address, or IPv6 network of 64 bits; behind a trusted proxy, requests of
    one client at once."""
    header_bytes: Annotated[int, Meta(ge=1_024, le=65_536)] = 16_384
    """Size of a request's head with its first line."""
    body_bytes: Size = 1_048_576
    """Size of a request's body."""
    upload_bytes: Size = 67_108_864
    """Size of a body with a recording: `/v1/audio/*`, `/v1/listen` and, 16 MiB at most, `/v1/voices`."""
    body_s: Seconds = 60.0
    """How long a request's body may take to come."""
    body_stall_s: Seconds = 10.0
    """How long nothing of it may come."""
    frame_bytes: Size = 1_048_576
    """Size of one WebSocket message."""
    ping_interval_s: Seconds = 20.0
    """Time between pings on a WebSocket."""
    ping_timeout_s: Seconds = 20.0
    """A client that answers no ping, or does not take what was sent, for so long is disconnected."""
    keep_alive_s: Seconds = 15.0
    """How long an HTTP connection without a request stays open."""


class WriterSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What waits for a WebSocket's client to read it; more than that closes it: `slow_reader`."""

    messages: Count = 1_024
    """Waiting messages."""
    bytes: Size = 1_048_576
    """Waiting bytes; 1 MiB is 24 s of 22.05 kHz audio."""
    stall_s: Seconds = 15.0
    """How long one message may take to leave."""


class StageSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the APIs of single stages use: those of OpenAI's and Deepgram's interfaces."""

    recognizer: Literal[
        "auto", "parakeet_tdt", "nemotron_streaming", "moonshine", "whisper", "sherpa_onnx"
    ] = "auto"
    """Model for streams of speech. `auto`: the first that the server has of `parakeet_tdt`, `moonshine`,
    `whisper`, `nemotron_streaming`, `sherpa_onnx`; for languages other than English, `whisper` first."""
    synthesizer: str = AUTO
    """Models that speak, in order of preference: `espeak`, `piper`, `hibari`, `kokoro`, `chatterbox`. `auto`:
    those of the parameter `tts` of `voice_agent`."""
    requests: Count = 64
    """Requests and streams at once, of each of these APIs; more are answered with 429
    ([shares](gateway.md#shares))."""
    retry_after_s: Seconds = 1.0
    """`Retry-After` of a refused request."""
    recording_s: Annotated[int, Meta(ge=1, le=MAX_SECONDS)] = MAX_SECONDS
    """The longest recording."""
    transcribe_s: Seconds = 300.0
    """Longest wait for the transcript of a recording."""
    voice_s: Seconds = 60.0
    """Longest wait for a voice that is made, listed or deleted."""
    voices_per_key: Count = 50
    """Voices that one key, or address without one, may have made; more are refused with 409."""
    speech_characters: Count = 4_096
    """The longest text that is spoken at once."""
    answer_tokens: Count = 1_024
    """Length of answers where a client does not say."""
    temperature: Annotated[float, Meta(ge=0, le=2)] = 0.0
    """Temperature of answers where a client does not say."""
    idle_s: Seconds = 60.0
    """A stream of speech whose client sends nothing for so long is closed."""
    voice_idle_s: Seconds = 60.0
    """A voice that is given no text, and says nothing, for so long is closed."""
    stall_s: Seconds = 15.0
    """A client that does not read its answer for so long loses it."""

    def __post_init__(self) -> None:
        try:
            read_names(self.synthesizer)
        except InvalidInputError as error:
            raise ValueError(str(error)) from error
