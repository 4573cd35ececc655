"""Session tokens for browsers: a page's own server fetches one with its key and hands it to the page."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Request
from msgspec import Meta
from starlette.responses import Response

from parley.errors import InvalidMessageError
from parley_gateway.access import Scope
from parley_gateway.bodies import read_small_body
from parley_gateway.gateway import Gateway
from parley_gateway.schemas import answers, body


class TokenRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the token is to be good for."""

    scopes: tuple[Scope, ...] = ("agent",)
    ttl_s: Annotated[float, Meta(gt=0)] | None = None
    """How long it can be used (seconds), at most what the gateway allows. None: as the gateway is set."""
    session_id: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    """The only session that it is good for; whoever has credentials of one session has to name it. None: any
    of the key's, and all else that is in the scopes."""
    single_use: bool = False
    """It opens one connection and is used up."""


class TokenAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A token."""

    token: str
    expires_at: int
    """Seconds since 1970."""
    scopes: list[Scope]
    session_id: str | None
    single_use: bool


def routes(gateway: Gateway) -> APIRouter:
    """``POST /v1/tokens``."""
    router = APIRouter(tags=["tokens"])

    @router.post(
        "/v1/tokens",
        openapi_extra=body(TokenRequest, required=False),
        responses=answers(201, TokenAnswer),
    )
    async def issue(request: Request) -> Response:
        """Issue a short-lived token for a browser."""
        principal = await gateway.guard.identify(request)
        wanted = _read(await read_small_body(request))
        # Whoever may do one of these things may let a browser do it.
        gateway.guard.authorize(request, principal, wanted.scopes[0], session_id=wanted.session_id)
        grant = gateway.guard.grant(
            principal,
            ttl_s=wanted.ttl_s,
            session_id=wanted.session_id,
            scopes=wanted.scopes,
            single_use=wanted.single_use,
        )
        answer = TokenAnswer(
            token=grant.token,
            expires_at=grant.expires_at,
            scopes=sorted(grant.scopes),
            session_id=grant.session_id,
            single_use=grant.single_use,
        )
        return Response(
            msgspec.json.encode(answer),
            status_code=201,
            media_type="application/json",
            headers={"Cache-Control": "no-store"},
        )

    return router


def _read(raw: bytes) -> TokenRequest:
    try:
        wanted = msgspec.json.decode(raw or b"{}", type=TokenRequest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidMessageError(f"the request cannot be read: {error}") from error
    if not wanted.scopes:
        raise InvalidMessageError("a token without scopes is good for nothing")
    return wanted
