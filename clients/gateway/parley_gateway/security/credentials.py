"""Where clients put their credentials: each protocol has its own place.

======================================================  ====================================================
``Authorization: Bearer <key>``                         OpenAI and most others
``Authorization: Token <key>``                          Deepgram
``x-api-key``, ``xi-api-key``, ``api-key``: ``<key>``   Anthropic's, ElevenLabs' and Azure's clients
``Sec-WebSocket-Protocol: token, <key>``                Deepgram in browsers
``… bearer, <key>``, also after another one             Parley's own page
``… realtime, openai-insecure-api-key.<key>``           OpenAI Realtime in browsers
======================================================  ====================================================

A URL is no such place: it ends up in logs, histories and ``Referer`` headers.
"""

from __future__ import annotations

from itertools import pairwise

from starlette.requests import HTTPConnection

from parley_gateway.errors import UnauthorizedError

MAX_CREDENTIAL_CHARS = 8_192
"""A JWT with many claims; nothing longer is looked at."""

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
    """The key or token that a connection brings; None: it brings none.

    Raises:
        UnauthorizedError: it is in the URL, it is two different ones, or its place or size is unknown.
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
