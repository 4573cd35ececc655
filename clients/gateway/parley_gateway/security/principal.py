"""Principals: the credentials that a connection brings, and what an admitted client may do."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias, get_args

import msgspec
from starlette.requests import HTTPConnection

from parley.errors import NotPermittedError
from parley_gateway.errors import UnauthorizedError

Scope: TypeAlias = Literal["agent", "transcribe", "speak", "chat", "voices", "calls", "dial", "admin"]
"""What a principal may do."""
SCOPES: frozenset[Scope] = frozenset(get_args(Scope))
"""All scopes."""


class KeyLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rates of one key in the place of those of all keys."""

    requests: str | None = None
    """`600/minute`. None: the rate of all keys."""
    sessions: str | None = None
    """`60/minute`. None: the rate of all keys."""


_USUAL = KeyLimits()
_ANYBODY = "anonymous"
RESERVED_IDS = frozenset({_ANYBODY, "twilio", "sip"})
"""Ids of principals without a key; a key with one of them would be taken for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """An admitted client."""

    id: str
    """The key's id, ``jwt:`` and the subject of a JWT, or ``anonymous``; never a secret."""
    scopes: frozenset[Scope]
    """What the client may do."""
    agents: frozenset[str] | None = None
    """Names of the agents that the client may call; empty text: the server's own. None: all."""
    session_id: str | None = None
    """The only session that the client may use; None: any of its own."""
    session_claimed: bool = False
    """Another issuer's JWT names ``session_id``: the session belongs to it, whichever key created it."""
    kind: Literal["anonymous", "key", "jwt", "token", "signature"] = "key"
    """The kind of credential."""
    limits: KeyLimits = _USUAL
    """Its rates."""
    root: Literal["anonymous", "key", "jwt", "signature"] = "key"
    """What ``kind`` comes from: of a token what it was issued to, otherwise the same."""
    fingerprint: str = ""
    """Identifies one secret of a key; never a secret itself."""
    expires_at: float | None = None
    """When ``root`` expires (seconds since 1970); None: never."""
    address: str = ""
    """Where the connection comes from, as it is counted."""

    @property
    def is_many(self) -> bool:
        """Whether many clients share this principal: those without a key, or by telephone."""
        return self.id == _ANYBODY or self.kind == "signature"

    @property
    def owner(self) -> str | None:
        """Under which name its open resources are counted; None: telephone callers share one address."""
        if self.kind == "signature":
            return None
        return f"address {self.address}" if self.id == _ANYBODY else self.id

    @property
    def cache_salt(self) -> str:
        """Of its requests to the language model; empty, for many clients: each session has its own."""
        return self._digest("prefix cache")

    @property
    def call_owner(self) -> str:
        """Stands in recordings of its calls; empty, for many clients: only administrators see them."""
        return self._digest("calls")

    def _digest(self, what: str) -> str:
        return "" if self.is_many else hashlib.sha256(f"{what} of {self.id}".encode()).hexdigest()

    def may_call(self, agent: str) -> bool:
        """Whether the client may call an agent; empty: the server's own."""
        return self.agents is None or agent in self.agents

    def check_agent(self, agent: str) -> None:
        """Raise NotPermittedError for an agent that the client may not call."""
        if not self.may_call(agent):
            what = f"the agent {agent[:80]!r}" if agent else "the server's own agent"
            raise NotPermittedError(f"these credentials may not call {what}")


ANONYMOUS = Principal(id=_ANYBODY, scopes=SCOPES - {"dial", "admin"}, kind="anonymous", root="anonymous")
"""The principal of requests without credentials."""

MAX_CREDENTIAL_CHARS = 8_192
"""Enough for a JWT with many claims; longer credentials are refused unread."""

_HEADERS = ("x-api-key", "xi-api-key", "api-key")
_SCHEMES = ("bearer", "token")
_OPENAI_PREFIX = "openai-insecure-api-key."
_IN_URL = frozenset(
    {
        "api_key",
        "apikey",
        "api-key",
        "x-api-key",
        "xi-api-key",
        "key",
        "token",
        "access_token",
        "authorization",
    }
)


def find_credential(connection: HTTPConnection) -> str | None:
    """The key or token of a connection; None: it has none.

    Each protocol has its own place for it:

    ======================================================  ================================================
    ``Authorization: Bearer <key>``                         OpenAI and most others
    ``Authorization: Token <key>``                          Deepgram
    ``x-api-key``, ``xi-api-key``, ``api-key``: ``<key>``   Anthropic's, ElevenLabs' and Azure's clients
    ``Sec-WebSocket-Protocol: token, <key>``                Deepgram in browsers
    ``… bearer, <key>``, also after another one             Parley's own page
    ``… realtime, openai-insecure-api-key.<key>``           OpenAI Realtime in browsers
    ======================================================  ================================================

    A URL is no such place: it ends up in logs, histories and ``Referer`` headers.

    Raises:
        UnauthorizedError: it is in the URL or malformed, it is too long, or there are several that differ.
    """
    for name in connection.query_params:
        if name.lower() in _IN_URL:
            raise UnauthorizedError(
                f"credentials do not belong in URLs ({name}=…): send Authorization: Bearer, x-api-key, or "
                "the WebSocket subprotocols bearer, <key>; treat this one as known to others"
            )
    found = {*_in_authorization(connection), *_in_headers(connection), *_in_subprotocols(connection)}
    if len(found) > 1:
        raise UnauthorizedError("the connection brings several credentials that differ")
    credential = next(iter(found), None)
    if credential is not None and len(credential) > MAX_CREDENTIAL_CHARS:
        raise UnauthorizedError(f"credentials have at most {MAX_CREDENTIAL_CHARS} characters")
    return credential


def accepted_subprotocol(connection: HTTPConnection) -> str | None:
    """The subprotocol with which a WebSocket is to be accepted: never one that carries a credential.

    Browsers give up a WebSocket whose server chooses none of those that they have offered.
    """
    offered = _offered(connection)
    return next((name for name in offered if name.lower() in ("realtime", *_SCHEMES)), None)


def _in_authorization(connection: HTTPConnection) -> list[str]:
    found = []
    for header in connection.headers.getlist("authorization"):
        scheme, _, credential = header.strip().partition(" ")
        if scheme.lower() not in _SCHEMES or not credential.strip():
            raise UnauthorizedError("Authorization has to be: Bearer <key>, or Token <key>")
        found.append(credential.strip())
    return found


def _in_headers(connection: HTTPConnection) -> list[str]:
    values = (connection.headers.get(name, "").strip() for name in _HEADERS)
    return [value for value in values if value]


def _in_subprotocols(connection: HTTPConnection) -> list[str]:
    offered = _offered(connection)
    found = [name.removeprefix(_OPENAI_PREFIX) for name in offered if name.startswith(_OPENAI_PREFIX)]
    found += [after for before, after in pairwise(offered) if before.lower() in _SCHEMES]
    return [credential for credential in found if credential]


def _offered(connection: HTTPConnection) -> list[str]:
    header = ",".join(connection.headers.getlist("sec-websocket-protocol"))
    return [name.strip() for name in header.split(",") if name.strip()]
