"""Settings of the gateway's security."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from parley_gateway.settings_sections import Count, Seconds, Size

Algorithm: TypeAlias = Literal[
    "HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA"
]
"""How JWTs may be signed; that they are not signed is no choice."""


class SecuritySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keys, tokens and origins."""

    keys_file: str = ""
    """TOML file with API keys as `parley gateway keys new` prints them; read again when it changes.
    Empty: no API keys."""
    insecure_allow_anonymous: bool = False
    """Listen on a public address, or behind a proxy, without authentication."""
    token_secret_file: str = ""
    """At least 32 random bytes that sign session tokens, the same for all gateways behind one address.
    Empty: made at the start."""
    token_ttl_s: Seconds = 60.0
    """Default lifetime of a session token."""
    token_max_ttl_s: Seconds = 3_600.0
    """Longest lifetime of a session token."""
    tokens_used: Count = 100_000
    """Used single-use tokens that are remembered until they expire; beyond it further ones are refused."""
    origins: tuple[str, ...] = ()
    """Origins of pages that may connect beside the gateway's own. `*`: all, only with keys or JWTs."""
    hosts: tuple[str, ...] = ()
    """Host names that are accepted while no credentials are required, beside localhost, addresses and
    that of `listen.public_url`; others are answered with 403."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses or networks of proxies whose `X-Forwarded-For` is believed: `10.0.0.0/8`."""
    audit_file: str = ""
    """File of the audit log; empty: standard error."""


class JwtSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """JWTs of another issuer."""

    issuer: str = ""
    """What `iss` has to be. Empty: no JWTs are accepted."""
    audience: str = "parley"
    """What `aud` has to be or contain."""
    algorithms: tuple[Algorithm, ...] = ("RS256", "ES256", "EdDSA")
    """Accepted signatures: with a secret (HS…) or with a public key, never both."""
    key_file: str = ""
    """The secret, a PEM public key, or a JWKS (JSON); read again when it changes."""
    leeway_s: Annotated[float, Meta(ge=0, le=300)] = 10.0
    """How far the issuer's clock may be off."""
    stay_open_s: Annotated[float, Meta(ge=0)] = 3_600.0
    """How long a connection may stay open after its JWT has expired."""
    scope_claim: str = "scope"
    """Claim with the scopes: a list, or words in one text."""
    agent_claim: str = "agents"
    """Claim with the agents that may be called: a list, or words in one text; an empty text in the list is
    the server's own agent. Without the claim: all."""
    session_claim: str = "session_id"
    """Claim with the only session that the token is good for."""


class RateSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often; `600/minute`, or several with `;` between them. Empty: no limit."""

    store: str = "memory://"
    """`memory://`, or `redis://host:6379/0` for several gateways together (`rediss://`: TLS)."""
    store_failure: Literal["memory", "allow", "refuse"] = "memory"
    """While Redis does not answer: every process counts for itself, nothing is counted, or all requests
    are refused (503)."""
    store_timeout_s: Seconds = 0.5
    """How long Redis may take."""
    key_requests: str = "6000/minute"
    """Requests and connections of one key; a key can have its own."""
    key_sessions: str = "600/minute"
    """WebSockets that one key opens; a key can have its own."""
    ip_requests: str = "6000/minute"
    """Requests and connections of one address, or IPv6 network of 64 bits."""
    ip_sessions: str = "600/minute"
    """WebSockets that it opens."""
    auth_failures: str = "10/minute"
    """Wrong credentials of one address. Those that name a key count for that key, which is then refused
    from this address; others together are refused with 429."""
    message_bytes: Size = 1_048_576
    """Largest WebSocket message."""
    messages_per_s: Count = 200
    """Messages of one WebSocket per second, on average."""
    bytes_per_s: Size = 2_097_152
    """Bytes of one WebSocket per second, on average."""
    burst_s: Seconds = 10.0
    """Messages of this time may come at once."""
