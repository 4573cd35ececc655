"""Headers that make browsers careful, on every answer; and who may read answers from other pages (CORS)."""

from __future__ import annotations

from collections.abc import Collection

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from parley_gateway.errors import ForbiddenError
from parley_gateway.failures import answer
from parley_gateway.security.origins import Origins

_CORS_MAX_AGE_S = 600
_HSTS = "max-age=31536000"
_USUAL = {
    # Answers for programs: whatever is in one, a browser makes no page of it. The page brings its own policy.
    "Content-Security-Policy": "default-src 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "microphone=(self), camera=(), geolocation=(), payment=(), usb=()",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Tokens and transcripts pass through here.
    "Cache-Control": "no-store",
}
_STARTS = ("http.response.start", "websocket.http.response.start")


class SecureHeaders:
    """ASGI middleware; what an answer says itself stays.

    Args:
        app: What answers.
        encrypted: Clients reach the gateway by TLS; browsers then stay with it (HSTS).
    """

    def __init__(self, app: ASGIApp, *, encrypted: bool) -> None:
        self._app = app
        self._headers = _USUAL | ({"Strict-Transport-Security": _HSTS} if encrypted else {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, with the headers added."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] in _STARTS:
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_with_headers)


class KnownHosts:
    """ASGI middleware: refuses requests to names that are not the gateway's; see :meth:`Origins.check_host`.

    Args:
        app: What is inside.
        origins: Know the names.
        open_paths: What is answered under every name, as probes come by any; it keeps details to itself.
    """

    def __init__(self, app: ASGIApp, origins: Origins, open_paths: Collection[str]) -> None:
        self._app = app
        self._origins = origins
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] in ("http", "websocket") and scope["path"] not in self._open_paths:
            try:
                self._origins.check_host(HTTPConnection(scope))
            except ForbiddenError as error:
                await answer(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def add_headers(app: Starlette, origins: Origins, *, encrypted: bool) -> None:
    """Put both on an application; before it serves.

    Args:
        app: The application.
        origins: Whose pages may read answers.
        encrypted: Clients reach the gateway by TLS.
    """
    if origins.allowed:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=sorted(origins.allowed),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["Location", "Retry-After"],
            # Keys and tokens are sent by the page itself; there are no cookies that could be.
            allow_credentials=False,
            max_age=_CORS_MAX_AGE_S,
        )
    # Added last, it is the outermost: answers to preflight requests get its headers too.
    app.add_middleware(SecureHeaders, encrypted=encrypted)
