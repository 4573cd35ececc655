"""Addresses and ports of WebRTC calls, and bounds of what one client can make the gateway hold.

The gateway uses private names of aiortc and aioice; these tests fail if those change.
"""

import asyncio
import gc
import socket
from contextlib import suppress

import numpy as np
import pytest
from aioice import stun
from aiortc import RTCIceTransport, RTCPeerConnection, RTCSessionDescription
from aiortc.exceptions import InvalidStateError
from aiortc.rtcsctptransport import SCTP_DATA_FIRST_FRAG, DataChunk
from aiortc.sdp import SessionDescription
from av import AudioFrame
from listening_gateway import until
from rtc_client import calling, forgotten, post_offer
from webrtc import PUBLIC, audio, candidate, data, offer

from parley.errors import OverloadedError
from parley_gateway.apis.realtime.webrtc import network
from parley_gateway.apis.realtime.webrtc.network import IceNetwork
from parley_gateway.apis.settings import RealtimeSettings
from parley_gateway.errors import GatewaySettingsError

ELSEWHERE = "203.0.113.7"
WILDCARD = "0.0.0.0"  # noqa: S104 - what is tested


def free_ports(count):
    """A range of UDP ports that nothing uses."""
    for first in range(52_000, 60_000, count):
        with suppress(OSError):
            for port in range(first, first + count):
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
                    one.bind(("127.0.0.1", port))
            return first, first + count - 1
    raise AssertionError


def announced(sdp):
    """Addresses and ports in an answer."""
    return {(one.ip, one.port) for one in SessionDescription.parse(sdp).media[0].ice_candidates}


async def answer_of(one, status=201):
    answer = await post_offer(one.http, offer(audio("0"), data("1")))
    assert answer.status_code == status, answer.text
    return answer


def peer_of(one):
    """The only call of a gateway, from inside."""
    (task,) = [
        task
        for task in asyncio.all_tasks()
        if task.get_name().startswith("rtc_") and " " not in task.get_name()
    ]
    return task.get_coro().cr_frame.f_locals["peer"]


def connection_of(one):
    (transport,) = peer_of(one)._transports()
    return transport.iceGatherer._connection


def bound(one):
    """Addresses and ports of the only call's sockets."""
    return [one.transport.get_extra_info("sockname") for one in connection_of(one)._protocols]


# --- addresses and ports ----------------------------------------------------------------------


async def test_a_gateway_on_loopback_opens_and_names_nothing_else(gateway):
    one = await gateway()
    addresses = {address for address, _ in announced((await answer_of(one)).text)}
    assert addresses == {"127.0.0.1"}
    assert [address for address, _ in bound(one)] == ["127.0.0.1"]


async def test_calls_take_their_ports_from_a_range_and_end_with_it(gateway):
    first, last = free_ports(2)
    one = await gateway(realtime={"ice_ports": f"{first}-{last}"}, calls={"limit": 16})
    answers = [await answer_of(one) for _ in range(2)]
    assert {port for answer in answers for _, port in announced(answer.text)} == {first, last}
    refused = await answer_of(one, 503)
    assert refused.json()["error"]["code"] == "overloaded"
    assert "realtime.ice_ports" in refused.json()["error"]["message"]
    await one.http.post(answers[0].headers["location"] + "/hangup")
    await forgotten(answers[0].headers["location"])
    assert announced((await answer_of(one)).text) == announced(answers[0].text)


async def test_an_address_of_this_machine_is_announced_and_bound(gateway):
    one = await gateway(realtime={"ice_address": "127.0.0.2"})
    async with calling(one.http) as client:
        assert {address for address, _ in announced(client.peer.remoteDescription.sdp)} == {"127.0.0.2"}
        assert [address for address, _ in bound(one)] == ["127.0.0.2"]


async def test_an_address_of_another_machine_is_announced(gateway):
    one = await gateway(realtime={"ice_address": ELSEWHERE})
    ((address, port),) = announced((await answer_of(one)).text)
    assert address == ELSEWHERE
    assert bound(one) == [(WILDCARD, port)]


@pytest.mark.parametrize(
    ("host", "addresses"),
    [
        ("127.0.0.1", ("127.0.0.1",)),
        ("localhost", ("127.0.0.1",)),
        ("::1", ("::1",)),
        ("192.0.2.9", ("192.0.2.9",)),
        (WILDCARD, None),
        ("::", None),
        ("gateway.example", None),
    ],
)
def test_udp_is_bound_where_http_listens(host, addresses):
    assert IceNetwork.of(RealtimeSettings(), host).addresses == addresses


@pytest.mark.parametrize(
    "wrong",
    [
        {"ice_address": "gateway.example"},
        {"ice_ports": "0-10"},
        {"ice_ports": "20-10"},
        {"ice_ports": "1-70000"},
        {"ice_networks": ("10.0.0.1/8",)},
    ],
)
def test_wrong_settings_are_refused_at_the_start(wrong):
    with pytest.raises(GatewaySettingsError):
        IceNetwork.of(RealtimeSettings(**wrong), "127.0.0.1")


async def test_checks_are_sent_to_public_and_allowed_addresses_only(gateway, monkeypatch):
    one = await gateway(realtime={"ice_networks": ["127.0.0.0/8"]})
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as allowed:
        allowed.bind(("127.0.0.1", 0))
        allowed.setblocking(False)
        lines = [candidate(address) for address in ("10.0.0.1", "192.168.7.7", "224.0.0.251", "router.local")]
        lines.append(candidate("127.0.0.1", allowed.getsockname()[1]))
        await post_offer(one.http, offer(audio("0", *lines)))
        datagram, _ = await asyncio.wait_for(asyncio.get_running_loop().sock_recvfrom(allowed, 1_500), 5)
        assert stun.parse_message(datagram).message_method == stun.Method.BINDING
        hosts = {one._network_host for one in connection_of(one)._remote_candidates}
        assert hosts == {"127.0.0.1"}


async def test_the_addresses_of_a_client_are_bounded(gateway):
    one = await gateway()
    await answer_of(one)
    connection = connection_of(one)
    protocol = connection._protocols[0]
    message = stun.Message(message_method=stun.Method.BINDING, message_class=stun.Class.REQUEST)
    message.attributes["PRIORITY"] = 1
    for port in range(20_000, 20_000 + 3 * network._MOST_PEERS):
        connection.check_incoming(message, ("127.0.0.1", port), protocol)
    assert len(connection._remote_candidates) == network._MOST_PEERS


async def test_datagrams_that_nothing_reads_are_dropped(gateway):
    one = await gateway()
    await answer_of(one)
    connection = connection_of(one)
    for _ in range(3 * network._MOST_DATAGRAMS):
        connection._protocols[0].datagram_received(b"\x80 no STUN", (PUBLIC, 50_000))
    assert connection._queue.qsize() == network._MOST_DATAGRAMS


# --- media and messages -----------------------------------------------------------------------


async def test_frames_that_nothing_reads_are_dropped(gateway, monkeypatch):
    async def unread(track):
        await asyncio.get_running_loop().create_future()
        yield track

    monkeypatch.setattr("parley_gateway.apis.realtime.webrtc.calls.read_track", unread)
    monkeypatch.setattr(network, "FRAMES", 8)
    one = await gateway()
    async with calling(one.http) as client:
        track = await peer_of(one)._microphone
        await until(track._queue.full)
        newest = track._queue._queue[-1].pts
        # The decoder goes on, and the newest frames stay.
        await client.until(lambda: track._queue._queue[-1].pts > newest)
        assert track._queue.qsize() == 8


async def test_a_full_queue_of_frames_keeps_the_newest_and_the_end():
    frames = network.Frames(3)
    for number in range(5):
        await frames.put(
            AudioFrame.from_ndarray(np.full((1, 4), number, np.int16), format="s16", layout="mono")
        )
    await frames.put(None)
    kept = [frames.get_nowait() for _ in range(3)]
    assert [int(frame.to_ndarray()[0, 0]) for frame in kept[:2]] == [3, 4]
    assert kept[2] is None


def rtp(source):
    return bytes(8) + source.to_bytes(4, "big") + bytes(20)


async def test_packets_are_bounded_by_sources_and_rate():
    taken = []

    async def handle(data, arrival_time_ms):
        taken.append(data[8:12])

    limited = network._limited(handle)
    for number in range(1_000):
        await limited(rtp(number), arrival_time_ms=0)
    assert len(set(taken)) == network.SOURCES
    for _ in range(2_000):
        await limited(rtp(1), arrival_time_ms=0)
    # The bucket fills while the test runs.
    assert len(taken) < 1.5 * network.PACKETS_PER_S


async def connected_pair():
    """What an offer was applied to, and how it would end."""
    ends = []
    caller, callee = RTCPeerConnection(), RTCPeerConnection()
    caller.createDataChannel("oai-events")
    caller.addTransceiver("audio")
    await callee.setRemoteDescription(RTCSessionDescription((await caller.createOffer()).sdp, "offer"))
    network.bound(callee, ends.append)
    return caller, callee, ends


@pytest.mark.parametrize("kind", ["window", "gaps", "streams", "crumbs"])
async def test_a_data_channel_that_brings_more_than_its_window_ends_the_call(kind, monkeypatch):
    caller, callee, ends = await connected_pair()
    sctp = callee.sctp
    chunk = DataChunk(flags=SCTP_DATA_FIRST_FRAG)
    chunk.stream_id = chunk.stream_seq = chunk.protocol = 0
    chunk.user_data = b"x"
    chunk.tsn = 1
    if kind == "window":
        sctp._advertised_rwnd = -1
    elif kind == "gaps":
        sctp._sack_misordered = set(range(network.REORDERED + 1))
    elif kind == "streams":
        for number in range(network.STREAMS + 1):
            sctp._get_inbound_stream(number)
    else:
        sctp._get_inbound_stream(0).reassembly = [chunk] * (network.REORDERED + 1)
    await sctp._handle_data(b"")
    assert [type(error) for error in ends] == [OverloadedError]
    await caller.close()
    await callee.close()


async def test_a_packet_that_aiortc_cannot_handle_ends_the_call(monkeypatch):
    async def fail(data):
        raise AssertionError

    ends = []
    caller, callee, _ = await connected_pair()
    await network._watched(callee.sctp, fail, ends.append)(b"")
    assert [error.code for error in ends] == ["invalid_message"]
    await caller.close()
    await callee.close()


async def test_failed_connection_ends_the_call_without_an_unhandled_error(gateway, monkeypatch):
    """As a transport raises that is stopped while aiortc's task turns to it, which nothing awaits."""

    async def closed(transport, parameters):
        raise InvalidStateError("RTCIceTransport is closed")

    unhandled = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    monkeypatch.setattr(RTCIceTransport, "start", closed)
    one = await gateway()
    # Two transports.
    sdp = offer(audio("0", candidate(PUBLIC)), data("1", candidate(PUBLIC)), bundle="x y z")
    answer = await post_offer(one.http, sdp)
    assert answer.status_code == 201, answer.text
    await forgotten(answer.headers["location"])
    gc.collect()
    assert unhandled == []


async def test_the_bounds_are_in_the_way_of_what_arrives(gateway, monkeypatch):
    seen = set()

    def noting(name, wrap):
        def wrapped(*arguments):
            handle = wrap(*arguments)

            async def handled(*data, **more):
                seen.add(name)
                await handle(*data, **more)

            return handled

        return wrapped

    monkeypatch.setattr(network, "_limited", noting("rtp", network._limited))
    monkeypatch.setattr(network, "_watched", noting("sctp", network._watched))
    one = await gateway()
    async with calling(one.http):
        await until(lambda: seen == {"rtp", "sctp"})


async def test_a_client_behind_the_same_address_connects_without_candidates(gateway):
    one = await gateway()
    async with calling(one.http):
        assert {found.type for found in connection_of(one)._remote_candidates} == {"prflx"}
