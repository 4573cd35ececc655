"""Headers that make browsers careful, on every answer; and who may read answers from other pages (CORS)."""

from __future__ import annotations

import re

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from parley_gateway.security.origins import Origins

_HOST = re.compile(r"[A-Za-z0-9.\-]+(?::\d{1,5})?|\[[0-9A-Fa-f:.]+\](?::\d{1,5})?")
_CORS_MAX_AGE_S = 600
_HSTS = "max-age=63072000; includeSubDomains"
_POLICY = (
    "default-src 'none'",
    # Nothing inline and nothing from elsewhere: text of a conversation can never become a program.
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self' data:",
    "font-src 'self'",
    "media-src 'self' blob:",
    "worker-src 'self'",
    "manifest-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
)
_ALWAYS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "microphone=(self), camera=(), geolocation=(), payment=(), usb=()",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_STARTS = ("http.response.start", "websocket.http.response.start")


class SecureHeaders:
    """ASGI middleware.

    An answer that says nothing about caching is not kept: tokens and transcripts pass through here.

    Args:
        app: What answers.
        encrypted: Clients reach the gateway by TLS; browsers then stay with it (HSTS).
    """

    def __init__(self, app: ASGIApp, *, encrypted: bool) -> None:
        self._app = app
        self._encrypted = encrypted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, with the headers added."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        policy = content_policy(Headers(scope=scope).get("host", ""))

        async def send_with_headers(message: Message) -> None:
            if message["type"] in _STARTS:
                headers = MutableHeaders(scope=message)
                for name, value in _ALWAYS.items():
                    headers[name] = value
                headers["Content-Security-Policy"] = policy
                headers.setdefault("Cache-Control", "no-store")
                if self._encrypted:
                    headers["Strict-Transport-Security"] = _HSTS
            await send(message)

        await self._app(scope, receive, send_with_headers)


def content_policy(host: str) -> str:
    """What a page of this gateway may load, and where it may connect.

    Args:
        host: The request's ``Host``: not every browser takes ``'self'`` for WebSockets too.
    """
    sockets = f" ws://{host} wss://{host}" if _HOST.fullmatch(host) else ""
    return "; ".join((*_POLICY, f"connect-src 'self'{sockets}"))


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
