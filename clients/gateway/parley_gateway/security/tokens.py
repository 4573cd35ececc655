"""Session tokens: what a browser gets instead of a key.

A token is ``ek_``, the name of the gateway that issued it, ``_``, and a JWT that the gateway signs for
itself: short-lived, with some of the scopes of the principal it was issued to, optionally for one session or
one use only. It ends with the key behind it. The name is there for balancers: every gateway with the same
secret accepts the token, but only that one has the settings that were stored with it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jwt

from parley_gateway.errors import ForbiddenError, GatewaySettingsError, UnauthorizedError
from parley_gateway.instances import mark
from parley_gateway.security.peer_seal import PeerSeal
from parley_gateway.security.principal import SCOPES, Principal, Scope

PREFIX = "ek_"
"""Clients of OpenAI's Realtime API look for it before they let a browser use a token."""
MIN_SECRET_BYTES = 32
_NAME = "parley-gateway"
_ALGORITHM = "HS256"


@dataclass(frozen=True, slots=True)
class Grant:
    """A session token that was just issued."""

    token: str
    expires_at: int
    """Seconds since 1970."""
    scopes: frozenset[Scope]
    session_id: str | None
    single_use: bool


@dataclass(frozen=True, slots=True)
class Shown:
    """What a valid session token says."""

    principal: Principal
    """Its id is that of the principal it was issued to."""
    token_id: str
    expires_at: int
    single_use: bool


class SessionTokens:
    """Issues and recognises them."""

    def __init__(
        self,
        secret: bytes,
        *,
        max_ttl_s: float = 3_600.0,
        clock: Callable[[], float] = time.time,
        instance: str = "gateway",
    ) -> None:
        self._secret = secret
        self._prefix = PREFIX + mark(instance, "")
        self._max_ttl_s = max_ttl_s
        self._clock = clock

    def issue(
        self,
        principal: Principal,
        *,
        ttl_s: float,
        scopes: Iterable[Scope],
        session_id: str | None = None,
        single_use: bool = False,
    ) -> Grant:
        """A token for an admitted principal.

        Args:
            principal: To whom.
            ttl_s: How long it can be used (seconds); cut to what is allowed, and to what is left of what the
                principal has shown.
            scopes: What it is good for.
            session_id: For this session only; None: for any of the principal's.
            single_use: It opens one connection and is used up.

        Raises:
            ForbiddenError: more than the principal has, or the principal has only a session token.
            UnauthorizedError: nothing is left.
        """
        wanted = frozenset(scopes)
        if principal.kind == "token":
            raise ForbiddenError("a session token cannot be exchanged for another one")
        if missing := wanted - principal.scopes:
            raise ForbiddenError(f"a token cannot have scopes beyond yours: {', '.join(sorted(missing))}")
        if principal.session_id not in (None, session_id):
            raise ForbiddenError("these credentials are for one session only")
        now = self._clock()
        ends_at = now + min(max(ttl_s, 1.0), self._max_ttl_s)
        if principal.expires_at is not None:
            ends_at = min(ends_at, principal.expires_at)
        expires_at = int(ends_at)
        if expires_at <= now:
            raise UnauthorizedError("the credentials expire before a token could be used")
        claims: dict[str, Any] = {
            "iss": _NAME,
            "aud": _NAME,
            "sub": principal.id,
            "kind": principal.kind,
            "scope": sorted(wanted),
            "iat": int(now),
            "exp": expires_at,
            "jti": secrets.token_urlsafe(16),
            "once": single_use,
            "key": principal.fingerprint,
            "until": principal.expires_at,
        }
        if principal.agents is not None:
            claims["agents"] = sorted(principal.agents)
        if session_id is not None:
            claims["sid"] = session_id
            # A request may name any session; only an issuer's claim makes it theirs.
            claims["claimed"] = principal.session_claimed
        token = self._prefix + jwt.encode(claims, self._secret, algorithm=_ALGORITHM)
        return Grant(token, expires_at, wanted, session_id, single_use)

    def derive_seal(self) -> PeerSeal:
        """How gateways with the same secret show each other for whom they pass a request on."""
        return PeerSeal(self._secret)

    def verify(self, token: str) -> Shown:
        """What a token says; whether it was used before is not known here.

        Raises:
            UnauthorizedError: the gateway has not issued it, or it has expired.
        """
        try:
            claims = jwt.decode(
                _signed_part(token),
                self._secret,
                algorithms=[_ALGORITHM],
                audience=_NAME,
                issuer=_NAME,
                options={"require": ["exp", "iss", "aud", "sub", "jti", "key"]},
            )
        except jwt.ExpiredSignatureError as error:
            raise UnauthorizedError("the session token has expired") from error
        except jwt.PyJWTError as error:
            raise UnauthorizedError("the session token is not valid") from error
        # What the gateway has signed itself has the form that it gave it.
        principal = Principal(
            id=claims["sub"],
            scopes=SCOPES & frozenset(claims["scope"]),
            agents=frozenset(claims["agents"]) if "agents" in claims else None,
            session_id=claims.get("sid"),
            session_claimed=claims.get("claimed", False),
            kind="token",
            root=claims["kind"],
            fingerprint=claims["key"],
            expires_at=claims["until"],
        )
        return Shown(principal, claims["jti"], claims["exp"], claims["once"])


def inherit(shown: Shown, owner: Principal) -> Principal:
    """The principal of a token whose owner was looked up: no more scopes, and agents, than the owner has."""
    return replace(
        shown.principal,
        scopes=shown.principal.scopes & owner.scopes,
        agents=owner.agents,
        limits=owner.limits,
        expires_at=owner.expires_at,
    )


def issuer_of(token: str) -> str:
    """The name of the gateway that says to have issued a token; empty: it says none."""
    instance, separator, _ = token.removeprefix(PREFIX).partition("_")
    return instance if token.startswith(PREFIX) and separator and "." not in instance else ""


def _signed_part(token: str) -> str:
    """The JWT in a token, with or without a gateway's name before it."""
    named = token.removeprefix(PREFIX)
    instance, _, signed = named.partition("_")
    # A name has no dot, and the first part of a JWT no underscore.
    return named if "." in instance else signed


def read_secret(file: str) -> bytes:
    """The secret in a file; of no file, a new one.

    Raises:
        GatewaySettingsError: the file cannot be used.
    """
    if not file:
        return secrets.token_bytes(MIN_SECRET_BYTES)
    try:
        secret = Path(file).read_bytes().strip()
    except OSError as error:
        raise GatewaySettingsError(f"security.token_secret_file: {error}") from error
    if len(secret) < MIN_SECRET_BYTES:
        raise GatewaySettingsError(f"{file}: the secret has to have at least {MIN_SECRET_BYTES} bytes")
    return secret
