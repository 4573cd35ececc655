"""Which address a connection comes from."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Iterable
from typing import TypeAlias

from starlette.requests import HTTPConnection

from parley_gateway.errors import GatewaySettingsError
from parley_gateway.security.peer_seal import PeerSeal

_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
_LOG = logging.getLogger(__name__)
_IPV6_PREFIX = 64
_IPV4_DOTS = 3
# Of a header that is named in the log.
_MAX_HOP = 64
_UNTRUSTED = (
    "%s sends X-Forwarded-For and is not believed: if it is a proxy, security.trusted_proxies has to name "
    "it, or all its clients count as one address"
)
_UNUSABLE = (
    "the trusted proxy %s sends an X-Forwarded-For that ends with %r, which is no address: its clients count "
    "as one"
)
UNKNOWN = "unknown"
"""For connections without an address, such as those over a Unix socket."""


class ClientAddresses:
    """Finds them, also behind proxies.

    Args:
        trusted_proxies: Addresses and networks whose ``X-Forwarded-For`` is believed.
        seal: Of other gateways that pass requests on; None: there are none.

    Raises:
        GatewaySettingsError: one of them is none.
    """

    def __init__(self, trusted_proxies: Iterable[str] = (), seal: PeerSeal | None = None) -> None:
        self._seal = seal
        try:
            self._trusted: list[_Network] = [ipaddress.ip_network(text) for text in trusted_proxies]
        except ValueError as error:
            raise GatewaySettingsError(f"security.trusted_proxies: {error}") from error
        self._warned: set[str] = set()

    def of(self, connection: HTTPConnection) -> str:
        """The client's address.

        Every proxy appends the address of its client. So the header is read from its end for as long as the
        addresses are those of trusted proxies; what stands before them the client may have invented.
        """
        if self._seal is not None and (sealed := self._seal.read(connection)) is not None:
            return sealed
        peer = _parse(connection.client.host if connection.client else "")
        if peer is None:
            return UNKNOWN
        hops = [
            part.strip()
            for header in connection.headers.getlist("x-forwarded-for")
            for part in header.split(",")
        ]
        if hops and not self.trusts(peer):
            self._warn(_UNTRUSTED, peer)
        while self.trusts(peer) and hops:
            hop = hops.pop()
            before = _parse_hop(hop)
            if before is None:
                if hop:
                    self._warn(_UNUSABLE, peer, hop[:_MAX_HOP])
                break
            peer = before
        return str(peer)

    def trusts(self, address: _Address) -> bool:
        """Whether it is one of the proxies."""
        return any(address in network for network in self._trusted)

    def _warn(self, what: str, *about: object) -> None:
        """Once for each kind, as any client may send the header."""
        if what not in self._warned:
            self._warned.add(what)
            _LOG.warning(what, *about)

    def is_passed_on(self, connection: HTTPConnection) -> bool:
        """Whether another gateway passes a request on, as it does for many clients."""
        return self._seal is not None and self._seal.read(connection) is not None

    def is_proxy(self, host: str) -> bool:
        """Whether an address is that of a trusted proxy."""
        address = _parse(host)
        return address is not None and self.trusts(address)


def counted_as(address: str) -> str:
    """The network that an address is counted with: an IPv6 client has the 2^64 addresses of its network."""
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


def _parse_hop(text: str) -> _Address | None:
    """An address as proxies write it.

    With the port of the client (Azure, IIS), in brackets, or in quotes, as RFC 7239 has it; ``unknown``, and
    what begins with an underscore, are none.
    """
    text = text.strip("\"' ")
    if text.startswith("["):
        inside, bracket, port = text[1:].partition("]")
        is_whole = bracket and (not port or (port[0] == ":" and port[1:].isdecimal()))
        return _parse(inside) if is_whole else None
    host, colon, port = text.partition(":")
    if colon and port.isdecimal() and host.count(".") == _IPV4_DOTS:
        return _parse(host)
    return _parse(text)


def _parse(text: str) -> _Address | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    # An IPv4 client of a socket that listens on both.
    return getattr(address, "ipv4_mapped", None) or address
