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
    """TOML file with the API keys, one line each, as `parley gateway keys new` prints them; read again when
    it changes. Empty: no API keys."""
    insecure_allow_anonymous: bool = False
    """Listen on a public address, or behind a proxy, without authentication."""
    token_secret_file: str = ""
    """At least 32 random bytes that sign session tokens; every gateway behind one address needs the same.
    Empty: made at the start, so that tokens end with the process."""
    token_ttl_s: Seconds = 60.0
    """Default lifetime of a session token (seconds)."""
    token_max_ttl_s: Seconds = 3_600.0
    """How long one can be used at most (seconds)."""
    tokens_used: Count = 100_000
    """How many used-up single-use tokens are remembered until they expire; beyond it further ones are
    refused."""
    origins: tuple[str, ...] = ()
    """Origins of pages that may connect beside the gateway's own: `https://app.example.com`. `*`: all, only
    with keys or JWTs."""
    hosts: tuple[str, ...] = ()
    """Host names under which the gateway is reached while no credentials are asked for; requests to others
    are answered with 403. Localhost, addresses and that of `listen.public_url` are known."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses or networks of proxies whose `X-Forwarded-For` is believed: `10.0.0.0/8`."""
    audit_file: str = ""
    """Where the audit log goes; empty: to standard error, with the other logs."""


class JwtSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """JWTs of another issuer."""

    issuer: str = ""
    """What `iss` has to be. Empty: no JWTs are accepted."""
    audience: str = "parley"
    """What `aud` has to be or contain."""
    algorithms: tuple[Algorithm, ...] = ("RS256", "ES256", "EdDSA")
    """Which signatures count: those with a secret (HS…), or those with a public key, never both."""
    key_file: str = ""
    """The secret, a PEM public key, or a JWKS (JSON); read again when it changes."""
    leeway_s: Annotated[float, Meta(ge=0, le=300)] = 10.0
    """How far the issuer's clock may be off (seconds)."""
    stay_open_s: Annotated[float, Meta(ge=0)] = 3_600.0
    """How long what a JWT has opened may stay open after it has expired (seconds)."""
    scope_claim: str = "scope"
    """Where the scopes are: a list, or words in one text."""
    session_claim: str = "session_id"
    """Where the only session is that the token is good for."""


class RateSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often; `600/minute`, or several with `;` between them. Empty: no limit."""

    store: str = "memory://"
    """Where it is counted: `memory://`, or `redis://host:6379/0` for several gateways together (`rediss://`
    with TLS: its certificate has to name the host)."""
    store_failure: Literal["memory", "allow", "refuse"] = "memory"
    """What happens while Redis does not answer: every process counts for itself, nothing is counted, or
    all requests are refused (503)."""
    store_timeout_s: Seconds = 0.5
    """How long Redis may take (seconds)."""
    key_requests: str = "6000/minute"
    """Requests and connections of one key; a key can have its own."""
    key_sessions: str = "600/minute"
    """WebSockets that one key opens; a key can have its own."""
    ip_requests: str = "6000/minute"
    """Requests and connections of one address, or IPv6 network of 64 bits."""
    ip_sessions: str = "600/minute"
    """WebSockets that it opens."""
    auth_failures: str = "10/minute"
    """Wrong credentials of one address. Those that name a key count for this key, which is then refused from
    there, right or wrong; all others count together, and more of them are refused with 429."""
    message_bytes: Size = 1_048_576
    """Largest WebSocket message."""
    messages_per_s: Count = 200
    """Messages of one WebSocket per second, on average."""
    bytes_per_s: Size = 2_097_152
    """Bytes of one WebSocket per second, on average."""
    burst_s: Seconds = 10.0
    """How long a WebSocket's messages may come at once that would be allowed over this time (seconds)."""
