"""Which address a connection comes from."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Iterable
from typing import TypeAlias

from starlette.requests import HTTPConnection

from parley_gateway.errors import SettingsError

_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
_LOG = logging.getLogger(__name__)
_IPV6_PREFIX = 64
UNKNOWN = "unknown"
"""For connections without an address, such as those over a Unix socket."""


class ClientAddresses:
    """Finds them, also behind proxies.

    Args:
        trusted_proxies: Addresses and networks whose ``X-Forwarded-For`` is believed.

    Raises:
        SettingsError: one of them is none.
    """

    def __init__(self, trusted_proxies: Iterable[str] = ()) -> None:
        try:
            self._trusted: list[_Network] = [ipaddress.ip_network(text) for text in trusted_proxies]
        except ValueError as error:
            raise SettingsError(f"security.trusted_proxies: {error}") from error
        self._has_warned = False

    def of(self, connection: HTTPConnection) -> str:
        """The client's address.

        Every proxy appends whom it has heard from. So the header is read from its end for as long as the
        addresses are those of trusted proxies; what stands before them the client may have invented.
        """
        peer = _parse(connection.client.host if connection.client else "")
        if peer is None:
            return UNKNOWN
        hops = [
            part.strip()
            for header in connection.headers.getlist("x-forwarded-for")
            for part in header.split(",")
        ]
        if hops and not self.trusts(peer):
            self._warn(peer)
        while self.trusts(peer) and hops:
            before = _parse(hops.pop())
            if before is None:
                break
            peer = before
        return str(peer)

    def trusts(self, address: _Address) -> bool:
        """Whether it is one of the proxies."""
        return any(address in network for network in self._trusted)

    def _warn(self, peer: _Address) -> None:
        """Once, as any client may send the header."""
        if not self._has_warned:
            self._has_warned = True
            _LOG.warning(
                "%s sends X-Forwarded-For and is not believed: if it is a proxy, security.trusted_proxies "
                "has to name it, or all its clients count as one address",
                peer,
            )

    def behind_proxy(self, connection: HTTPConnection) -> bool:
        """Whether a trusted proxy has sent this, so that its other headers count too."""
        peer = _parse(connection.client.host if connection.client else "")
        return peer is not None and self.trusts(peer)


def counted_as(address: str) -> str:
    """Whom an address is counted with: whoever has one IPv6 address has the 2^64 of its network."""
    parsed = _parse(address)
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((parsed, _IPV6_PREFIX), strict=False))
    return address


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens on it."""
    if host.lower().rstrip(".") == "localhost":
        return True
    address = _parse(host.strip("[]"))
    return address is not None and address.is_loopback


def is_address(host: str) -> bool:
    """Whether it is an address and not a name."""
    return _parse(host.strip("[]")) is not None


def _parse(text: str) -> _Address | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    # An IPv4 client of a socket that listens on both.
    return getattr(address, "ipv4_mapped", None) or address
