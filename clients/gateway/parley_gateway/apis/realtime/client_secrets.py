"""Client secrets: tokens for browsers, with the settings that their sessions begin with."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response

from parley.errors import ParleyError
from parley.protocol import MAX_MESSAGE_BYTES
from parley_gateway.apis.realtime.client_events import check_nesting, refusal_of_field
from parley_gateway.apis.realtime.server_events import ClientEventError, answer_refusal, error_response
from parley_gateway.apis.realtime.session_config import first_config
from parley_gateway.apis.realtime.transcription_config import TranscriptionConfig
from parley_gateway.errors import UnauthorizedError
from parley_gateway.gateway import Gateway
from parley_gateway.security.credentials import find_credential
from parley_gateway.security.principal import Principal
from parley_gateway.security.tokens import Grant

_TTL_S = 600
_BYTES = 16_777_216
"""What all settings may hold that are remembered."""


class _Expiry(msgspec.Struct, frozen=True):
    anchor: Literal["created_at"] = "created_at"
    seconds: Annotated[int, Meta(ge=10, le=7_200)] = _TTL_S


class _Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    expires_after: _Expiry | None = None
    session: dict[str, Any] | None = None


@dataclass(frozen=True)
class _Kept:
    expires_at: float
    session: bytes
    """As JSON."""


class SecretSessions:
    """Remembers the settings of secrets until they expire.

    Only this process knows them: with several gateways behind one address, a client that comes to another one
    has the server's default settings, and sends a ``session.update``. Where there is no room, whoever has the
    most loses the oldest of it: nobody can push out what others have.

    Args:
        room: How many are remembered.
    """

    def __init__(self, room: int) -> None:
        self._room = room
        self._owners: dict[bytes, str] = {}
        self._kept: dict[str, OrderedDict[bytes, _Kept]] = {}
        """By the key that asked for them."""

    def remember(self, grant: Grant, principal: Principal, session: dict[str, Any]) -> None:
        """A session with this secret begins so, until it expires.

        Raises:
            Refusal: no session could begin so.
        """
        raw = msgspec.json.encode(session)
        if len(raw) > MAX_MESSAGE_BYTES:
            message = f"The session has {len(raw)} bytes; at most {MAX_MESSAGE_BYTES} are allowed."
            raise ClientEventError(message, param="session")
        digest = _digest(grant.token)
        self._owners[digest] = principal.id
        self._kept.setdefault(principal.id, OrderedDict())[digest] = _Kept(grant.expires_at, raw)
        self._forget_expired(principal.id)
        while len(self._owners) > self._room:
            self._forget_of(max(self._kept, key=lambda owner: len(self._kept[owner])))
        while sum(map(self._bytes_of, self._kept)) > _BYTES:
            self._forget_of(max(self._kept, key=self._bytes_of))

    def find(self, connection: HTTPConnection) -> dict[str, Any]:
        """The settings that a connection's secret brings; none: empty.

        May be asked before the connection is let in: what brings no sound credentials brings no settings.
        """
        try:
            digest = _digest(find_credential(connection) or "")
        except UnauthorizedError:
            return {}
        owner = self._owners.get(digest)
        if owner is None or (kept := self._kept[owner][digest]).expires_at <= time.time():
            return {}
        return msgspec.json.decode(kept.session, type=dict[str, Any])

    def _bytes_of(self, owner: str) -> int:
        return sum(len(kept.session) for kept in self._kept[owner].values())

    def _forget_expired(self, owner: str) -> None:
        now = time.time()
        for digest in [digest for digest, kept in self._kept[owner].items() if kept.expires_at <= now]:
            self._forget(owner, digest)

    def _forget_of(self, owner: str) -> None:
        self._forget(owner, next(iter(self._kept[owner])))

    def _forget(self, owner: str, digest: bytes) -> None:
        del self._owners[digest]
        del self._kept[owner][digest]
        if not self._kept[owner]:
            del self._kept[owner]


async def create_secret(request: Request, gateway: Gateway, secrets: SecretSessions) -> Response:
    """Answer ``POST /v1/realtime/client_secrets``."""
    try:
        principal = await gateway.guard.identify(request)
        raw = await request.body()
        scope: Literal["agent", "transcribe"] = "transcribe" if _transcribes(raw) else "agent"
        gateway.guard.authorize(request, principal, scope)
        wanted = _read(raw)
        given = wanted.session or {}
        if scope == "transcribe":
            session = TranscriptionConfig(given).echo()
        else:
            session = first_config(gateway, given.get("model"), given).echo()
        ttl_s = (wanted.expires_after or _Expiry()).seconds
        grant = gateway.guard.grant(principal, ttl_s=ttl_s, scopes=(scope,))
        secrets.remember(grant, principal, given)
    except ParleyError as error:
        return error_response(error)
    except ClientEventError as refusal:
        return answer_refusal(refusal)
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
