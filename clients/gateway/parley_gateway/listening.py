"""Where the gateway listens, and how much it reads at once."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from parley_gateway.kinds import Count, Seconds, Size


class ListenSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Address and TLS."""

    host: str = "127.0.0.1"
    """Address to listen on; anything but loopback needs authentication."""
    port: Annotated[int, Meta(ge=0, le=65_535)] = 8080
    """0: any free one, which the start line names."""
    health_port: Annotated[int, Meta(ge=0, le=65_535)] | None = None
    """Where, at the same address, `/healthz`, `/readyz`, `/health`, `/ready` and `/metrics` are answered and
    nothing else is, whatever is open at the other port; 0: any free one. None: nowhere."""
    certificate: str = ""
    """PEM file with the certificate chain; empty: plain HTTP."""
    key: str = ""
    """PEM file with its private key."""
    public_url: str = ""
    """What clients call the gateway, behind a proxy: `https://voice.example.com`. Empty: as they do."""
    drain_s: Annotated[float, Meta(ge=0)] = 30.0
    """How long running calls may go on after SIGTERM (seconds)."""


class LimitSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much is read and held for one connection."""

    connections: Count = 2_000
    """Open connections of this process; less if it may not have the descriptors. For one more, the one that
    has waited for a request for longest is closed; if none waits, requests are answered with 503."""
    connections_per_address: Count = 500
    """Of one address, or IPv6 network of 64 bits; behind a trusted proxy, requests of one client at once.
    More are answered with 429."""
    header_bytes: Annotated[int, Meta(ge=1_024, le=65_536)] = 16_384
    """Of a request's head, its first line included; more is answered with 431, or 414."""
    body_bytes: Size = 1_048_576
    """Of a request."""
    upload_bytes: Size = 67_108_864
    """Of a request that brings a recording: `/v1/audio/*` and `/v1/listen`."""
    body_s: Seconds = 60.0
    """How long a request's body may take to come (seconds)."""
    body_stall_s: Seconds = 10.0
    """How long nothing of it may come (seconds)."""
    frame_bytes: Size = 1_048_576
    """Of one WebSocket message."""
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
