"""Settings of the API for telephone calls."""

from __future__ import annotations

import msgspec

from parley_gateway.kinds import Seconds


class TwilioSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Telephone calls through Twilio: ``/v1/twilio/*``."""

    auth_token_file: str = ""
    """File with the account's auth token, by which Twilio's signature is checked; read again when it changes.
    Empty: there is no such API."""
    account: str = ""
    """The only account (`AC…`) whose calls are taken. Empty: any that knows the auth token."""
    system_prompt: str | None = None
    """What the agent is told. None: the server's choice."""
    greeting: str | None = None
    """What it says first. None: the server's choice."""
    voice: str | None = None
    """None: the synthesizer's default."""
    language: str = "en"
    """The language of the call."""
    own_twiml: bool = False
    """Streams may be opened by TwiML of your own, which lacks the nonce that `/v1/twilio/voice` puts into
    its. A leaked signature of a stream, which never changes, then opens streams for good."""
    start_s: Seconds = 10.0
    """How long a stream may take to say whose call it is (seconds)."""
    farewell_s: Seconds = 5.0
    """How long the caller may take to hear the rest when the agent has hung up (seconds)."""
