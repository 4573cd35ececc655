"""Client secrets: tokens for browsers, with the settings that their sessions begin with."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response

from parley.errors import ParleyError
from parley_gateway.doors.realtime.beginning import first_config
from parley_gateway.doors.realtime.client_events import check_nesting, refusal_of_field
from parley_gateway.doors.realtime.failures import answer_refusal, refused_request
from parley_gateway.doors.realtime.refusals import Refusal
from parley_gateway.doors.realtime.transcription_config import TranscriptionConfig
from parley_gateway.gateway import Gateway
from parley_gateway.security.credentials import find_credential

_TTL_S = 600


class _Expiry(msgspec.Struct, frozen=True):
    anchor: Literal["created_at"] = "created_at"
    seconds: Annotated[int, Meta(ge=10, le=7_200)] = _TTL_S


class _Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    expires_after: _Expiry | None = None
    session: dict[str, Any] | None = None


class SecretSessions:
    """Remembers the settings of secrets until they expire; the oldest are forgotten first.

    Only this process knows them: with several gateways behind one address, a client that comes to another one
    has the server's default settings, and sends a ``session.update``.

    Args:
        room: How many are remembered.
    """

    def __init__(self, room: int) -> None:
        self._room = room
        self._sessions: OrderedDict[bytes, tuple[float, dict[str, Any]]] = OrderedDict()

    def remember(self, secret: str, expires_at: float, session: dict[str, Any]) -> None:
        """A session with this secret begins so, until ``expires_at`` (seconds since 1970)."""
        self._sessions[_digest(secret)] = (expires_at, session)
        if len(self._sessions) > self._room:
            self._sessions.popitem(last=False)

    def find(self, connection: HTTPConnection) -> dict[str, Any]:
        """The settings that a connection's secret brings; none: empty."""
        credential = find_credential(connection)
        expires_at, session = self._sessions.get(_digest(credential or ""), (0.0, {}))
        return session if expires_at > time.time() else {}


async def create_secret(request: Request, gateway: Gateway, secrets: SecretSessions) -> Response:
    """Answer ``POST /v1/realtime/client_secrets``."""
    try:
        raw = await request.body()
        scope: Literal["agent", "transcribe"] = "transcribe" if _transcribes(raw) else "agent"
        principal = await gateway.guard.admit(request, scope)
        wanted = _read(raw)
        given = wanted.session or {}
        if scope == "transcribe":
            session = TranscriptionConfig(given).echo()
        else:
            session = first_config(gateway, given.get("model"), given).echo()
        ttl_s = (wanted.expires_after or _Expiry()).seconds
        grant = gateway.guard.grant(principal, ttl_s=ttl_s, scopes=(scope,))
    except ParleyError as error:
        return refused_request(error)
    except Refusal as refusal:
        return answer_refusal(refusal)
    secrets.remember(grant.token, grant.expires_at, given)
    body = {"value": grant.token, "expires_at": grant.expires_at, "session": session}
    return JSONResponse(body, headers={"Cache-Control": "no-store"})


class _SessionType(msgspec.Struct):
    type: Any = None


class _Intent(msgspec.Struct):
    session: _SessionType | None = None


def _transcribes(raw: bytes) -> bool:
    """Whether the request is for a session that only transcribes; one that cannot be read is not."""
    try:
        session = msgspec.json.decode(raw, type=_Intent).session
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return session is not None and session.type == "transcription"


def _read(raw: bytes) -> _Request:
    try:
        wanted = msgspec.json.decode(raw or b"{}", type=_Request)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise refusal_of_field(error) from error
    check_nesting(wanted.session, "session")
    return wanted


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
