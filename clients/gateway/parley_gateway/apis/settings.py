"""Settings of the APIs.

Apart because the settings of the process import it, and all other modules of the APIs import those.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from parley_gateway.settings_sections import Count, Seconds


class RealtimeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """OpenAI's Realtime protocol: `/v1/realtime`."""

    session_s: Seconds = 3_600.0
    """How long a session may last (seconds)."""
    first_event_s: Seconds = 60.0
    """How long a client may be connected without sending an event (seconds)."""
    keep_alive_s: Seconds = 20.0
    """Interval of keep-alive messages to the agent for a silent client (seconds)."""
    waiting: Count = 256
    """Commands of one client that wait for the agent; at the limit its next event waits."""
    burst_s: Seconds = 3.0
    """Audio that may be sent at once (seconds)."""
    pace: Annotated[float, Meta(ge=1)] = 2.0
    """How much faster than real time audio is sent to the agent that comes all at once."""
    voices: dict[str, str] = {}
    """OpenAI's names of voices → the server's; others mean the default voice."""
    secrets: Count = 1_024
    """Client secrets that are stored together with a session's settings."""
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
    """Networks, in addition to public addresses, whose candidates are tried: `10.0.0.0/8`. Other clients are
    reached at the address from which they send."""
    ice_s: Seconds = 30.0
    """How long a WebRTC connection may take to be established (seconds)."""


class SessionSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sessions of ``/v1/sessions``."""

    connect_s: Seconds = 60.0
    """How long a new session waits for its stream (seconds)."""
    waiting: Count = 256
    """Sessions that wait for their stream."""
    waiting_per_key: Count = 64
    """Waiting sessions of one key, or of one address where no key is required."""
    remembered_s: Seconds = 300.0
    """How long the status of an ended session is available (seconds)."""
    remembered: Count = 1_024
    """Ended sessions whose status is available; the oldest are removed first."""


class TwilioSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Telephone calls through Twilio: ``/v1/twilio/*``."""

    auth_token_file: str = ""
    """File with the account's auth token, by which Twilio's signature is checked; read again when it changes.
    Empty: there is no such API."""
    account: str = ""
    """The only account (`AC…`) whose calls are accepted. Empty: any with the auth token."""
    system_prompt: str | None = None
    """The system prompt. None: the server's default."""
    greeting: str | None = None
    """The greeting. None: the server's default."""
    voice: str | None = None
    """The voice. None: the synthesizer's default."""
    language: str = "en"
    """The language of the call."""
    own_twiml: bool = False
    """Whether streams may be opened by TwiML of your own, without the nonce of `/v1/twilio/voice`. A leaked
    signature of a stream, which never changes, then opens streams for good."""
    start_s: Seconds = 10.0
    """How long a stream may take to send `start` (seconds)."""
    farewell_s: Seconds = 5.0
    """How long the rest of the agent's audio may take to play after the agent has hung up (seconds)."""
