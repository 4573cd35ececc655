"""Sections of the settings that no single module owns, and the kinds of numbers in all sections.

Apart because the sections of the APIs use these kinds, and the settings import those sections.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from parley.errors import InvalidInputError
from parley.logs import LogFormat
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


class ListenSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Address and TLS."""

    host: str = "127.0.0.1"
    """Address to listen on; anything but loopback needs authentication, and so does loopback with
    `public_url` or `security.trusted_proxies`."""
    port: Annotated[int, Meta(ge=0, le=65_535)] = 8080
    """0: any free one, which the start line names."""
    health_port: Annotated[int, Meta(ge=0, le=65_535)] | None = None
    """Where, at the same address, `/healthz`, `/readyz`, `/health`, `/ready` and `/metrics` are answered and
    nothing else is, whatever is open at the other port; 0: any free one. None: nowhere."""
    metrics_port: Annotated[int, Meta(ge=0, le=65_535)] | None = None
    """Where `/metrics` is answered without a key, and nothing else is: let only Prometheus reach it; 0: any
    free one. None: nowhere."""
    metrics_host: str = ""
    """Address of that port. Empty: `listen.host`."""
    certificate: str = ""
    """PEM file with the certificate chain; empty: plain HTTP. It and the key are read again when they are
    renewed."""
    key: str = ""
    """PEM file with its private key."""
    public_url: str = ""
    """What clients call the gateway, behind a proxy: `https://voice.example.com`; it needs authentication.
    Empty: as they do."""
    instance: Annotated[str, Meta(pattern=PATTERN)] = ""
    """The gateway's name in the ids of its sessions, for balancers: small letters, digits and `-`. Empty:
    eight characters that are made of the variable `POD_NAME`, or of the host's name."""
    peers: tuple[str, ...] = ()
    """All gateways behind the same address, this one too: `host:port`, or `dns://name:port` for every address
    of a name. Requests and streams of a session that one of them has made are passed on to it. Empty: the
    balancer has to route ([several gateways](#several-gateways-behind-one-address))."""
    drain_s: Annotated[float, Meta(ge=0, le=MAX_DEADLINE_S)] = 30.0
    """How long running calls may go on after SIGTERM (seconds, at most a day)."""


class LogSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The log on standard error."""

    format: LogFormat = "text"
    """`json`: one object per line, with the ids of request, session and trace ([logs.md](logs.md))."""


class LimitSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much is read and held for one connection."""

    connections: Count = 2_000
    """Open connections of this process; less if it may not have the descriptors. For one more, the one that
    has waited for a request for longest is closed; if none waits, requests are answered with 503."""
    connections_per_address: Count = 500
    """Open connections of one address, or IPv6 network of 64 bits; behind a trusted proxy, requests of one
    client at once. More are answered with 429."""
    header_bytes: Annotated[int, Meta(ge=1_024, le=65_536)] = 16_384
    """Size of a request's head with its first line; more is answered with 431, or 414."""
    body_bytes: Size = 1_048_576
    """Size of a request's body."""
    upload_bytes: Size = 67_108_864
    """Size of a body with a recording: `/v1/audio/*`, `/v1/listen` and, 16 MiB at most, `/v1/voices`."""
    body_s: Seconds = 60.0
    """How long a request's body may take to come (seconds)."""
    body_stall_s: Seconds = 10.0
    """How long nothing of it may come (seconds)."""
    frame_bytes: Size = 1_048_576
    """Size of one WebSocket message."""
    ping_interval_s: Seconds = 20.0
    """Pings on every WebSocket (seconds)."""
    ping_timeout_s: Seconds = 20.0
    """A client that answers no ping, or does not take what was sent, for so long is gone (seconds)."""
    keep_alive_s: Seconds = 15.0
    """How long an HTTP connection without a request stays open (seconds)."""


class WriterSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What waits for a WebSocket's client to read it; more than that closes it: `slow_reader`."""

    messages: Count = 1_024
    """Waiting messages."""
    bytes: Size = 1_048_576
    """Waiting bytes; 1 MiB is 24 s of 22.05 kHz audio."""
    stall_s: Seconds = 15.0
    """How long one message may take to leave (seconds)."""


class StageSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the APIs of single stages use: those of OpenAI's and Deepgram's interfaces."""

    recognizer: Literal[
        "auto", "parakeet_tdt", "nemotron_streaming", "moonshine", "whisper", "sherpa_onnx"
    ] = "auto"
    """The model that streams of speech go to. `auto`: the first that the server has of `parakeet_tdt`,
    `moonshine`, `whisper`, `nemotron_streaming` and `sherpa_onnx`; for languages other than English,
    `whisper` first."""
    synthesizer: str = AUTO
    """The model that speaks: `espeak`, `piper`, `kokoro` or `chatterbox`. Several with commas, in order of
    preference: the one that has the voice speaks. `auto`: those of the server's conversations, as the
    parameter `tts` of `voice_agent` says."""
    requests: Count = 64
    """Requests and streams at once, of each of these APIs; more are answered with 429. A key, or of callers
    without one an address, gets at most three times what is still free, so that others always get in."""
    retry_after_s: Seconds = 1.0
    """``Retry-After`` of a refused request (seconds)."""
    recording_s: Annotated[int, Meta(ge=1, le=MAX_SECONDS)] = MAX_SECONDS
    """The longest recording (seconds)."""
    transcribe_s: Seconds = 300.0
    """Longest wait for the transcript of a recording (seconds)."""
    voice_s: Seconds = 60.0
    """Longest wait for a voice that is made of a recording, listed or deleted (seconds)."""
    voices_per_key: Count = 50
    """Voices that one key, or of callers without one an address, may have made; more are refused with 409."""
    speech_characters: Count = 4_096
    """The longest text that is spoken at once."""
    answer_tokens: Count = 1_024
    """How long answers may become where a client does not say."""
    temperature: Annotated[float, Meta(ge=0, le=2)] = 0.0
    """How freely answers are written where a client does not say."""
    idle_s: Seconds = 60.0
    """A stream of speech whose client sends nothing for so long is closed (seconds)."""
    voice_idle_s: Seconds = 60.0
    """A voice that is given no text, and says nothing, for so long is closed (seconds)."""
    stall_s: Seconds = 15.0
    """A client that does not read its answer for so long loses it (seconds)."""

    def __post_init__(self) -> None:
        try:
            read_names(self.synthesizer)
        except InvalidInputError as error:
            raise ValueError(str(error)) from error
