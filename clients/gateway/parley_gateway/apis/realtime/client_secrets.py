"""Client secrets: tokens for browsers, with the initial settings of their sessions."""

from __future__ import annotations

import hashlib
import heapq
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from parley.errors import ParleyError
from parley_gateway.apis.realtime.client_events import check_shape, check_size, refusal_of_field
from parley_gateway.apis.realtime.server_events import ClientEventError, error_response
from parley_gateway.apis.realtime.session_config import first_config
from parley_gateway.apis.realtime.transcription import TranscriptionConfig
from parley_gateway.bodies import JSON_ERRORS, json_answer
from parley_gateway.errors import UnauthorizedError
from parley_gateway.gateway import Gateway
from parley_gateway.security.principal import Principal, find_credential
from parley_gateway.security.tokens import Grant, issuer_of

_TTL_S = 600
_MAX_BYTES = 16_777_216
"""Size of all stored settings."""


class _Expiry(msgspec.Struct, frozen=True):
    anchor: Literal["created_at"] = "created_at"
    seconds: Annotated[int, Meta(ge=10, le=7_200)] = _TTL_S


class _Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    expires_after: _Expiry | None = None
    session: dict[str, Any] | None = None


@dataclass(frozen=True)
class _Stored:
    expires_at: float
    session: bytes
    """The session's settings as JSON."""
    owner: str
    """The id of the principal that it was made for."""


class SecretSessions:
    """Stores the settings of client secrets until they expire.

    They are stored in this process: with several gateways behind one address, a client that connects to
    another one gets the default settings, and sends a ``session.update``. At the limit of ``max_entries`` the
    principal with most entries loses its oldest one, so that no principal can displace those of others.
    """

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._stored: dict[bytes, _Stored] = {}
        """By the digest of the secret, the oldest first."""

    def store(self, grant: Grant, principal: Principal, session: dict[str, Any]) -> None:
        """Store the settings of a secret."""
        now, stored = time.time(), self._stored
        stored[_digest(grant.token)] = _Stored(grant.expires_at, msgspec.json.encode(session), principal.id)
        for digest in [digest for digest, one in stored.items() if one.expires_at <= now]:
            del stored[digest]
        if len(stored) > self._max_entries:
            self._shrink(self._max_entries, lambda _: 1)
        if sum(len(one.session) for one in stored.values()) > _MAX_BYTES:
            self._shrink(_MAX_BYTES, len)

    def _shrink(self, limit: int, weigh: Callable[[bytes], int]) -> None:
        """Drop the oldest entry of the heaviest principal while all entries weigh more than ``limit``."""
        entries: defaultdict[str, deque[bytes]] = defaultdict(deque)
        weights: Counter[str] = Counter()
        for digest, one in self._stored.items():
            entries[one.owner].append(digest)
            weights[one.owner] += weigh(one.session)
        total, heaviest = weights.total(), [(-weight, owner) for owner, weight in weights.items()]
        heapq.heapify(heaviest)
        while total > limit:
            weight, owner = heaviest[0]
            dropped = weigh(self._stored.pop(entries[owner].popleft()).session)
            total -= dropped
            heapq.heapreplace(heaviest, (weight + dropped, owner))

    def find(self, connection: HTTPConnection) -> dict[str, Any]:
        """The settings of a connection's secret, before its admission; empty without a valid secret."""
        digest = _digest(_secret_of(connection))
        stored = self._stored.get(digest)
        if stored is None or stored.expires_at <= time.time():
            return {}
        return msgspec.json.decode(stored.session, type=dict[str, Any])

    def find_issuer(self, connection: HTTPConnection) -> str:
        """The gateway that a connection's secret says to be from, with its settings; empty: it says none."""
        return issuer_of(_secret_of(connection))


async def create_secret(request: Request, gateway: Gateway, secrets: SecretSessions) -> Response:
    """Answer ``POST /v1/realtime/client_secrets``."""
    try:
        principal = await gateway.guard.identify(request)
        raw = await request.body()
        check_size(raw, "session")
        scope: Literal["agent", "transcribe"] = "transcribe" if _transcribes(raw) else "agent"
        gateway.guard.authorize(request, principal, scope)
        wanted = _read(raw)
        given = wanted.session or {}
        if scope == "transcribe":
            session = TranscriptionConfig(given).body
        else:
            session = (await first_config(gateway, principal, None, given)).body
        ttl_s = (wanted.expires_after or _Expiry()).seconds
        grant = gateway.guard.grant(principal, ttl_s=ttl_s, scopes=(scope,))
        secrets.store(grant, principal, given)
    except (ParleyError, ClientEventError) as error:
        return error_response(error)
    return json_answer({"value": grant.token, "expires_at": grant.expires_at, "session": session})


class _SessionType(msgspec.Struct):
    type: Any = None


class _Intent(msgspec.Struct):
    session: _SessionType | None = None


def _transcribes(raw: bytes) -> bool:
    """Whether the request is for a transcription session; an unreadable one is not."""
    try:
        session = msgspec.json.decode(raw, type=_Intent).session
    except JSON_ERRORS:
        return False
    return session is not None and session.type == "transcription"


def _read(raw: bytes) -> _Request:
    try:
        wanted = msgspec.json.decode(raw or b"{}", type=_Request)
    except JSON_ERRORS as error:
        raise refusal_of_field(error, _Request) from error
    check_shape(wanted.session, "session")
    return wanted


def _secret_of(connection: HTTPConnection) -> str:
    try:
        return find_credential(connection) or ""
    except UnauthorizedError:
        return ""


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
