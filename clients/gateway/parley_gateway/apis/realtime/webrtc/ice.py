"""Where WebRTC calls send and receive: the addresses and ports of ICE.

aiortc has no place for these settings: it makes an ``aioice.Connection`` for itself, which binds any port of
every interface, and learns any number of addresses of its client. :func:`use` turns a connection that has
gathered no addresses yet into one that keeps to the settings. That relies on what is private in aioice;
``tests/unit/gateway/realtime/test_webrtc_network.py`` fails if it changes.
"""
# ruff: noqa: SLF001, ASYNC109 - aioice offers no other way

from __future__ import annotations

import asyncio
import errno
import ipaddress
import secrets
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import aioice
from aioice import ice, stun
from aioice.candidate import candidate_foundation, candidate_priority
from aiortc import RTCIceTransport

from parley.errors import OverloadedError
from parley_gateway.apis.realtime.settings import RealtimeSettings
from parley_gateway.errors import SettingsError
from parley_gateway.security.addresses import is_loopback

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
_MOST_ADDRESSES = 8
"""Of this machine's, in one answer."""
_MOST_PEERS = 64
"""Addresses of one client from which checks are taken."""
_MOST_DATAGRAMS = 1_024
"""That wait to be read; a client's second has some hundreds."""
_EVERY = {4: "0.0.0.0", 6: "::"}  # noqa: S104 - only where the operator has named an announced address
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class IceNetwork:
    """The settings of ICE, checked.

    Attributes:
        addresses: What UDP is bound to; None: the address of every interface.
        announced: The address that clients use, where it may be another than the bound one.
        ports: From which UDP ports are taken; empty: any.
        peers: Networks whose addresses are tried, beside public ones.
    """

    addresses: tuple[str, ...] | None = None
    announced: str = ""
    ports: range = range(0)
    peers: tuple[Network, ...] = ()

    @classmethod
    def of(cls, settings: RealtimeSettings, host: str) -> IceNetwork:
        """Those of a gateway that listens on ``host``.

        Raises:
            SettingsError: one of them cannot be used.
        """
        ports = _ports(settings.ice_ports)
        try:
            peers = tuple(ipaddress.ip_network(text) for text in settings.ice_networks)
            announced = str(ipaddress.ip_address(settings.ice_address)) if settings.ice_address else ""
        except ValueError as error:
            raise SettingsError(f"realtime.ice_address, realtime.ice_networks: {error}") from error
        return cls(None if announced else _addresses(host), announced, ports, peers)


def use(transport: RTCIceTransport, network: IceNetwork) -> None:
    """Let a connection keep to ``network``; before it gathers addresses."""
    connection = transport.iceGatherer._connection
    connection.__class__ = _Connection
    cast("_Connection", connection).network = network


class _Connection(aioice.Connection):
    """Keeps to the settings, and within bounds.

    Why not a constructor: aiortc calls ``aioice.Connection`` itself, deep inside of ``RTCPeerConnection``.
    """

    network: IceNetwork

    async def get_component_candidates(
        self, component: int, addresses: list[str], timeout: int = 5
    ) -> list[aioice.Candidate]:
        """Bind, and ask the STUN and TURN servers that are configured."""
        protocols = await self._bind_all(addresses, component)
        asked: list[Any] = [super().get_component_candidates(component, [], timeout)]
        if self.stun_server:
            asked += [self._ask_stun(protocol, self.stun_server, timeout) for protocol in protocols]
        found = await asyncio.gather(*asked)
        return [protocol.local_candidate for protocol in protocols] + [one for some in found for one in some]

    def check_incoming(
        self, message: stun.Message, addr: tuple[str, int], protocol: ice.StunProtocol
    ) -> None:
        """A check of the client's, from wherever it comes: aioice keeps every address for good."""
        if len(self._remote_candidates) < _MOST_PEERS or any(
            (one._network_host, one.port) == addr for one in self._remote_candidates
        ):
            super().check_incoming(message, addr, protocol)

    def data_received(self, data: bytes, component: int) -> None:
        """A datagram from anywhere: aioice queues all that come, also before there is a connection."""
        if self._queue.qsize() < _MOST_DATAGRAMS:
            super().data_received(data, component)

    async def _bind_all(self, found: list[str], component: int) -> list[ice.StunProtocol]:
        network = self.network
        addresses = [network.announced] if network.announced else network.addresses
        protocols = []
        failure: OSError | None = None
        for address in (found if addresses is None else addresses)[:_MOST_ADDRESSES]:
            try:
                protocols.append(await self._bind(address, component))
            except OSError as error:
                failure = error  # an interface that just went away
        if not protocols:
            raise OverloadedError("no UDP address can be bound for a WebRTC call") from failure
        return protocols

    async def _bind(self, address: str, component: int) -> ice.StunProtocol:
        """A socket with its candidate.

        Raises:
            OverloadedError: there is no free port.
            OSError: the address cannot be bound.
        """
        try:
            protocol = await self._open(address)
        except OSError as error:
            if not self.network.announced or error.errno != errno.EADDRNOTAVAIL:
                raise
            # Another machine translates it to this one's.
            protocol = await self._open(_EVERY[ipaddress.ip_address(address).version])
        self._protocols.append(protocol)
        protocol.local_candidate = aioice.Candidate(
            foundation=candidate_foundation("host", "udp", address),
            component=component,
            transport="udp",
            priority=candidate_priority(component, "host"),
            host=address,
            port=protocol.transport.get_extra_info("sockname")[1],
            type="host",
        )
        return protocol

    async def _open(self, address: str) -> ice.StunProtocol:
        ports = self.network.ports or (0,)
        # From anywhere in the range: a port that was closed just now may still be sent to.
        first = secrets.randbelow(len(ports))
        for number in range(len(ports)):
            port = ports[(first + number) % len(ports)]
            try:
                _, protocol = await asyncio.get_running_loop().create_datagram_endpoint(
                    lambda: ice.StunProtocol(self), local_addr=(address, port)
                )
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                return protocol
        raise OverloadedError("no UDP port is free for another WebRTC call (realtime.ice_ports)")

    async def _ask_stun(
        self, protocol: ice.StunProtocol, server: tuple[str, int], timeout: int
    ) -> list[aioice.Candidate]:
        if ipaddress.ip_address(protocol.local_candidate.host).version != 4:
            return []
        try:
            async with asyncio.timeout(timeout):
                return [(await ice.server_reflexive_candidate(protocol, server))[0]]
        except (TimeoutError, OSError, stun.TransactionError):
            return []  # it may be reached without


def _addresses(host: str) -> tuple[str, ...] | None:
    """What UDP is bound to where HTTP listens on ``host``; None: every interface."""
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return (_LOOPBACK,) if is_loopback(host) else None
    return None if address.is_unspecified else (str(address),)


def _ports(text: str) -> range:
    if not text:
        return range(0)
    first, last = (int(part) for part in text.split("-"))
    if not 1 <= first <= last < 1 << 16:
        raise SettingsError(f"realtime.ice_ports: {text} is no range of ports")
    return range(first, last + 1)
