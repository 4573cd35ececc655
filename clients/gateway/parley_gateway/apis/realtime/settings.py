"""Settings of the realtime API."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from parley_gateway.kinds import Count, Seconds


class RealtimeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """OpenAI's Realtime protocol: `/v1/realtime`."""

    session_s: Seconds = 3_600.0
    """How long a session may last (seconds)."""
    first_event_s: Seconds = 60.0
    """How long a client may be connected without doing anything (seconds)."""
    keep_alive_s: Seconds = 20.0
    """The agent is told so often that a client is there which says nothing (seconds)."""
    waiting: Count = 256
    """Wishes of one client that the agent has not been told yet; then its next event waits."""
    burst_s: Seconds = 3.0
    """Audio that may be sent at once (seconds)."""
    pace: Annotated[float, Meta(ge=1)] = 2.0
    """How much faster than real time audio is passed on that comes all at once."""
    voices: dict[str, str] = {}
    """OpenAI's names of voices → the server's; those that are not here stand for the default voice."""
    secrets: Count = 1_024
    """Client secrets that are remembered together with a session's settings."""
    webrtc: bool = True
    """Whether calls may come over WebRTC."""
    ice_servers: tuple[str, ...] = ()
    """STUN and TURN servers, `turn:user:password@host:port`; none: the gateway's own addresses only."""
    ice_address: str = ""
    """The address that WebRTC clients use: announced, and bound where it is one of this machine's; otherwise
    (1:1 NAT, containers) UDP is bound to all. Empty: `listen.host`, or every interface if that is a wildcard
    or a name."""
    ice_ports: Annotated[str, Meta(pattern="^([0-9]{1,5}-[0-9]{1,5})?$")] = ""
    """UDP ports of WebRTC calls, `50000-50999`; a call takes one of each address, and one without a port is
    refused with 503. Empty: any."""
    ice_networks: tuple[str, ...] = ()
    """Networks, beside public addresses, that a WebRTC client may name as its own and that are then tried
    from here: `10.0.0.0/8`. Clients elsewhere are only answered where they come from."""
    ice_s: Seconds = 30.0
    """How long a WebRTC connection may take to come about (seconds)."""
