"""The network of WebRTC calls: addresses and ports of ICE, and bounds of what a client can make it hold.

aiortc has no parameter for these settings: it creates an ``aioice.Connection`` itself, which binds any port
of every interface, and accepts any number of addresses of its client. :func:`use` turns a connection that has
gathered no addresses yet into one that follows the settings, and :func:`bound` replaces queues and handlers
without bounds. Both rely on private names of aioice and aiortc;
``tests/unit/gateway/realtime/test_webrtc_network.py`` fails if they change.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import secrets
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import aioice
from aioice import ice, stun
from aioice.candidate import candidate_foundation, candidate_priority
from aiortc import RTCIceTransport, RTCPeerConnection, RTCSctpTransport
from aiortc.rtcdtlstransport import RTCDtlsTransport
from aiortc.rtcrtpreceiver import RemoteStreamTrack

from parley.errors import InvalidMessageError, OverloadedError, ParleyError
from parley_gateway.apis.settings import RealtimeSettings
from parley_gateway.errors import GatewaySettingsError
from parley_gateway.security.addresses import is_loopback
from parley_gateway.security.rates import Bucket

# ruff: noqa: SLF001, ASYNC109 - aioice and aiortc offer no other way

_HandleRtp: TypeAlias = Callable[[bytes, int], Coroutine[Any, Any, None]]
_HandleSctp: TypeAlias = Callable[[bytes], Coroutine[Any, Any, None]]
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
_MOST_ADDRESSES = 8
"""Addresses of this machine in one answer."""
_MOST_PEERS = 64
"""Addresses of one client from which checks are accepted."""
_MOST_DATAGRAMS = 1_024
"""In the queue; a client sends some hundreds per second."""
_EVERY = {4: "0.0.0.0", 6: "::"}  # noqa: S104 - only where the operator has named an announced address
_LOOPBACK = "127.0.0.1"
FRAMES = 256
"""Decoded frames in a queue: five seconds of 20 ms. Then the oldest are dropped."""
PACKETS_PER_S = 400.0
"""RTP packets: Opus sends 50, and 400 of its shortest frames. Also the largest burst."""
SOURCES = 8
"""A microphone has one; a replaced one has another."""
REORDERED = 2_048
"""Chunks of the data channel that wait for earlier ones; its window has 900."""
STREAMS = 64
"""Channels; one is used."""
_SSRC = slice(8, 12)


@dataclass(frozen=True)
class IceNetwork:
    """The settings of ICE, checked."""

    addresses: tuple[str, ...] | None = None
    """Addresses to which UDP is bound; None: those of every interface."""
    announced: str = ""
    """The address that clients use, where it may differ from the bound one."""
    ports: range = range(0)
    """UDP ports of calls; empty: any."""
    peers: tuple[Network, ...] = ()
    """Networks of clients whose addresses are tried, in addition to public ones."""

    @classmethod
    def of(cls, settings: RealtimeSettings, host: str) -> IceNetwork:
        """The settings of a gateway that listens on ``host``; raises GatewaySettingsError."""
        ports = _ports(settings.ice_ports)
        try:
            peers = tuple(ipaddress.ip_network(text) for text in settings.ice_networks)
            announced = str(ipaddress.ip_address(settings.ice_address)) if settings.ice_address else ""
        except ValueError as error:
            raise GatewaySettingsError(f"realtime.ice_address, realtime.ice_networks: {error}") from error
        return cls(None if announced else _addresses(host), announced, ports, peers)


def use(transport: RTCIceTransport, network: IceNetwork) -> None:
    """Make a connection follow ``network``, before it gathers addresses."""
    connection = transport.iceGatherer._connection
    connection.__class__ = _Connection
    cast("_Connection", connection).network = network


class _Connection(aioice.Connection):
    """Follows the settings, within bounds.

    It has no constructor because aiortc calls ``aioice.Connection`` itself, inside ``RTCPeerConnection``.
    """

    network: IceNetwork

    async def get_component_candidates(
        self, component: int, addresses: list[str], timeout: int = 5
    ) -> list[aioice.Candidate]:
        """Bind sockets, and ask the configured STUN and TURN servers."""
        protocols = await self._bind_all(addresses, component)
        asked: list[Any] = [super().get_component_candidates(component, [], timeout)]
        if self.stun_server:
            asked += [self._ask_stun(protocol, self.stun_server, timeout) for protocol in protocols]
        found = await asyncio.gather(*asked)
        return [protocol.local_candidate for protocol in protocols] + [one for some in found for one in some]

    def check_incoming(
        self, message: stun.Message, addr: tuple[str, int], protocol: ice.StunProtocol
    ) -> None:
        """Bound the addresses from which checks come: aioice stores every one."""
        if len(self._remote_candidates) < _MOST_PEERS or any(
            (one._network_host, one.port) == addr for one in self._remote_candidates
        ):
            super().check_incoming(message, addr, protocol)

    def data_received(self, data: bytes, component: int) -> None:
        """Bound the queue of datagrams: aioice queues all, also before the connection is established."""
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
                failure = error  # an interface that was just removed
        if not protocols:
            raise OverloadedError("no UDP address can be bound for a WebRTC call") from failure
        return protocols

    async def _bind(self, address: str, component: int) -> ice.StunProtocol:
        """A socket with its candidate; raises OverloadedError without a free port, else OSError."""
        try:
            protocol = await self._open(address)
        except OSError as error:
            if not self.network.announced or error.errno != errno.EADDRNOTAVAIL:
                raise
            # NAT translates the address to one of this machine.
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
        # A random port of the range: clients may still send to one that was closed just now.
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
            return []  # clients may reach the gateway without it


def _addresses(host: str) -> tuple[str, ...] | None:
    """Addresses for UDP where HTTP listens on ``host``; None: every interface."""
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
        raise GatewaySettingsError(f"realtime.ice_ports: {text} is not a range of ports")
    return range(first, last + 1)


def bound(connection: RTCPeerConnection, end: Callable[[ParleyError], None]) -> None:
    """Bound what its client can make a connection hold; ``connection`` has its remote description.

    ``end`` ends the call with an error.
    """
    transports: set[RTCDtlsTransport] = set()
    for transceiver in connection.getTransceivers():
        transports.add(transceiver.receiver.transport)
        track = transceiver.receiver.track
        if isinstance(track, RemoteStreamTrack):
            # The decoder's thread reads the attribute when it starts, and track.recv() on each call.
            track._queue = Frames(FRAMES)
    for transport in transports:
        vars(transport)["_handle_rtp_data"] = _limited(transport._handle_rtp_data)
    if connection.sctp is not None:
        sctp = connection.sctp
        vars(sctp)["_handle_data"] = _watched(sctp, sctp._handle_data, end)


class Frames(asyncio.Queue[Any]):
    """The newest frames of a track."""

    async def put(self, item: Any) -> None:
        """Append a frame without waiting; in a full queue it replaces the oldest."""
        if self.full():
            self.get_nowait()
        self.put_nowait(item)


def _limited(handle: _HandleRtp) -> _HandleRtp:
    """Limit the rate and the sources of RTP packets; others are dropped."""
    room = Bucket(PACKETS_PER_S, 1.0, time.monotonic)
    sources: set[bytes] = set()

    async def limited(data: bytes, arrival_time_ms: int) -> None:
        source = data[_SSRC]
        if len(sources) < SOURCES:
            sources.add(source)
        if source in sources and not room.take(1):
            await handle(data, arrival_time_ms)

    return limited


def _watched(sctp: RTCSctpTransport, handle: _HandleSctp, end: Callable[[ParleyError], None]) -> _HandleSctp:
    """Handle packets of the data channel; a client that exceeds the window ends its call."""

    async def watched(data: bytes) -> None:
        if not _is_within(sctp):
            end(OverloadedError("the data channel exceeds its window"))
            return
        try:
            await handle(data)
        except Exception as error:  # noqa: BLE001 - aiortc raises exceptions of many types
            # aiortc asserts what a client can violate; its reader would end, and the call would not.
            end(InvalidMessageError(f"the data channel cannot be read: {type(error).__name__}"))

    return watched


def _is_within(sctp: RTCSctpTransport) -> bool:
    return (
        sctp._advertised_rwnd >= 0
        and len(sctp._sack_misordered) <= REORDERED
        and len(sctp._sack_duplicates) <= REORDERED
        and len(sctp._inbound_streams) <= STREAMS
        and all(len(stream.reassembly) <= REORDERED for stream in sctp._inbound_streams.values())
    )
