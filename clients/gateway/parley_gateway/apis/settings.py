"""Settings of the APIs."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from parley.protocol import EndingOptions
from parley_gateway.settings_sections import Count, Seconds, check_transfers


class RealtimeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """OpenAI's Realtime protocol: `/v1/realtime`."""

    session_s: Seconds = 3_600.0
    """How long a session may last."""
    first_event_s: Seconds = 60.0
    """How long a client may be connected without sending an event."""
    keep_alive_s: Seconds = 20.0
    """Interval of keep-alive messages to the agent for a silent client."""
    waiting: Count = 256
    """Commands of one client that wait for the agent."""
    burst_s: Seconds = 3.0
    """Audio that may be sent at once."""
    pace: Annotated[float, Meta(ge=1)] = 2.0
    """Speed, in real time, at which audio that comes all at once is sent to the agent."""
    voices: dict[str, str] = {}
    """OpenAI's names of voices and the server's; other names mean the default voice."""
    mcp_hosts: tuple[str, ...] = ()
    """Hosts of MCP servers that sessions may name, over HTTPS and at public addresses. Empty: none."""
    mcp_private_hosts: tuple[str, ...] = ()
    """The same of those that may have private addresses and be reached over HTTP."""
    secrets: Count = 1_024
    """Client secrets that are stored together with a session's settings."""
    webrtc: bool = True
    """Whether calls may come over WebRTC."""
    ice_servers: tuple[str, ...] = ()
    """STUN and TURN servers, `turn:user:password@host:port`."""
    ice_address: str = ""
    """Address that WebRTC clients get ([WebRTC](gateway.md#webrtc-in-a-network)). Empty: `listen.host`,
    or every interface if that is a wildcard or a name."""
    ice_ports: Annotated[str, Meta(pattern="^([0-9]{1,5}-[0-9]{1,5})?$")] = ""
    """UDP ports of WebRTC calls, `50000-50999`; a call takes one of each address. Empty: any."""
    ice_networks: tuple[str, ...] = ()
    """Networks beside public addresses whose candidates are tried: `10.0.0.0/8`."""
    ice_s: Seconds = 30.0
    """How long a WebRTC connection may take to be established."""


class SessionSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sessions of ``/v1/sessions``."""

    connect_s: Seconds = 60.0
    """How long a new session waits for its stream."""
    waiting: Count = 256
    """Sessions that wait for their stream."""
    waiting_per_key: Count = 64
    """Those of one key, or of one address where no key is required."""
    remembered_s: Seconds = 300.0
    """How long the status of an ended session is available."""
    remembered: Count = 1_024
    """Ended sessions whose status is available; the oldest are removed first."""


class TwilioSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Telephone calls through Twilio: ``/v1/twilio/*``."""

    auth_token_file: str = ""
    """File with the account's auth token, read again when it changes. Empty: no Twilio."""
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
    ending: EndingOptions = EndingOptions()
    """How the language model can end or transfer calls: `end_call`, `transfers`
    ([the end of a call](tools.md#the-end-of-a-call)), each with its number or address in `to`."""
    own_twiml: bool = False
    """Whether TwiML of your own may open streams, without a nonce. A leaked signature of a stream then
    stays valid."""
    start_s: Seconds = 10.0
    """How long a stream may take to send `start`."""
    farewell_s: Seconds = 5.0
    """How long the rest of the agent's audio may play after the agent has hung up."""

    def __post_init__(self) -> None:
        check_transfers(self.ending)
