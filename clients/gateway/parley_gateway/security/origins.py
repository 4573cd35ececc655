"""Which pages may connect.

A browser tells where a page comes from, and no page can lie about it. WebSockets know no other protection:
any page may open one to any server. Other programs send no ``Origin``, or any; they need credentials.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from parley_gateway.errors import ForbiddenError, SettingsError
from parley_gateway.security.addresses import is_address, is_loopback

_DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}


class Origins:
    """Judges them.

    Args:
        allowed: Origins beside the gateway's own; ``*``: all.
        hosts: Names under which the gateway is known, for anonymous use.
        public_url: Where clients reach it, if a proxy is in front.
        anonymous: Nobody is asked for credentials. Then a name that is not known is refused even if page and
            gateway share it: whoever owns a name can let it point to this machine (DNS rebinding).

    Raises:
        SettingsError: one of them is no origin, or all are allowed to use it anonymously.
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
            raise SettingsError("security.origins: every page may connect only where keys or JWTs are needed")
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
        except SettingsError as error:
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
        SettingsError: it is none.
    """
    try:
        parts = urlsplit(origin)
        port = parts.port
    except ValueError as error:
        raise SettingsError(f"{origin!r} is not an origin: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
        raise SettingsError(f"{origin!r} is not an origin, such as https://app.example.com")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    written = "" if port in (None, _DEFAULT_PORTS[parts.scheme]) else f":{port}"
    return f"{parts.scheme}://{host}{written}"
