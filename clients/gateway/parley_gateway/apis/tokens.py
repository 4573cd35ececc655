"""Session tokens for browsers: a page's own server requests one with its key for the page."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Request
from msgspec import Meta
from starlette.responses import Response

from parley.errors import InvalidMessageError
from parley_gateway.bodies import json_answer, read_json
from parley_gateway.gateway import Gateway
from parley_gateway.schemas import answers, body
from parley_gateway.security.principal import Scope


class TokenRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rights of a token."""

    scopes: tuple[Scope, ...] = ("agent",)
    ttl_s: Annotated[float, Meta(gt=0)] | None = None
    """Its lifetime (seconds), up to the gateway's limit. None: the gateway's default."""
    session_id: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    """The only session for which it is valid; required with credentials of one session. None: any
    session of the key, and everything else in the scopes."""
    single_use: bool = False
    """Whether it opens only one connection."""


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
        wanted = _read(await request.body())
        # A principal may pass on any of its scopes to a browser.
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
        return json_answer(answer, 201)

    return router


def _read(raw: bytes) -> TokenRequest:
    wanted: TokenRequest = read_json(raw or b"{}", TokenRequest, "the request")
    if not wanted.scopes:
        raise InvalidMessageError("a token needs at least one scope")
    return wanted
