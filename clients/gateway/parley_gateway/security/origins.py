"""Which pages may connect, and what browsers are allowed to do with responses.

A browser sends the origin of a page, and no page can change it. WebSockets have no other protection:
any page may open one to any server. Other programs send no ``Origin``, or any; they need credentials.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from parley_gateway.errors import ForbiddenError, GatewaySettingsError
from parley_gateway.security.addresses import is_address, is_loopback

_DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}


class Origins:
    """The origins and host names that are allowed.

    Args:
        allowed: Origins beside the gateway's own; ``*``: all.
        hosts: Names under which the gateway is known, for anonymous use.
        public_url: Where clients reach it, if a proxy is in front.
        anonymous: No credentials are needed. Then an unknown name is refused even if page and
            gateway share it: the owner of a name can let it point to this machine (DNS rebinding).

    Raises:
        GatewaySettingsError: one of them is no origin, or all are allowed to use it anonymously.
    """

    def __init__(
        self,
        allowed: Iterable[str] = (),
        hosts: Iterable[str] = (),
        public_url: str = "",
        *,
        anonymous: bool = False,
    ) -> None:
        self.allowed = frozenset(origin if origin == "*" else _normal(origin) for origin in allowed)
        if anonymous and "*" in self.allowed:
            raise GatewaySettingsError(
                "security.origins: every page may connect only where keys or JWTs are needed"
            )
        self._own = _normal(public_url) if public_url else None
        self._own_name = urlsplit(self._own).hostname if self._own else None
        self._hosts = {host.lower() for host in hosts}
        self._anonymous = anonymous

    def check(self, connection: HTTPConnection) -> None:
        """Let a page in.

        Raises:
            ForbiddenError: it is none of those that may connect.
        """
        origin = connection.headers.get("origin")
        if origin is None or "*" in self.allowed:
            return
        try:
            normal = _normal(origin)
        except GatewaySettingsError as error:
            raise ForbiddenError("pages without an origin may not connect") from error
        if normal in self.allowed or normal == self._own or self._is_same(normal, connection):
            return
        raise ForbiddenError("pages of this origin may not connect: security.origins names those that may")

    def check_host(self, connection: HTTPConnection) -> None:
        """Let a request in that was sent to a name of this gateway.

        Without credentials a page of another site could otherwise read everything: its owner lets the page's
        own name point here, and to the browser both are one (DNS rebinding).

        Raises:
            ForbiddenError: the name is not known.
        """
        written = connection.headers.get("host")
        if not self._anonymous or not written:
            return
        try:
            name = urlsplit(f"//{written}").hostname or ""
        except ValueError:
            name = ""
        if not self._is_known(name):
            raise ForbiddenError("this host name is not known: security.hosts names those that are")

    def _is_same(self, origin: str, connection: HTTPConnection) -> bool:
        try:
            host = urlsplit(f"//{connection.headers.get('host', '')}")
            page = urlsplit(origin)
            # Only the port that is written: a proxy in front may speak TLS where the gateway does not.
            default = _DEFAULT_PORTS[page.scheme]
            same = page.hostname == host.hostname and (page.port or default) == (host.port or default)
        except ValueError:
            return False
        return same and (not self._anonymous or self._is_known(host.hostname or ""))

    def _is_known(self, name: str) -> bool:
        return is_loopback(name) or is_address(name) or name in self._hosts or name == self._own_name


def _normal(origin: str) -> str:
    """An origin as browsers write it.

    Raises:
        GatewaySettingsError: it is none.
    """
    try:
        parts = urlsplit(origin)
        port = parts.port
    except ValueError as error:
        raise GatewaySettingsError(f"{origin!r} is not an origin: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
        raise GatewaySettingsError(f"{origin!r} is not an origin, such as https://app.example.com")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    written = "" if port in (None, _DEFAULT_PORTS[parts.scheme]) else f":{port}"
    return f"{parts.scheme}://{host}{written}"


_CORS_MAX_AGE_S = 600
_HSTS = "max-age=31536000"
_USUAL = {
    # Responses for programs: a browser makes no page of one. The page sets its own policy.
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
    """ASGI middleware: adds headers of security that a response does not set itself; with TLS also HSTS."""

    def __init__(self, app: ASGIApp, *, encrypted: bool) -> None:
        self._app = app
        self._headers = _USUAL | ({"Strict-Transport-Security": _HSTS} if encrypted else {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and add the headers to the response."""
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


def add_headers(app: Starlette, origins: Origins, *, encrypted: bool) -> None:
    """Add CORS and :class:`SecureHeaders` to an application, before it serves."""
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
