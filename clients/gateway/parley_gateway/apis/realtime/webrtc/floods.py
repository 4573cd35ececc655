"""Bounds on what one WebRTC client makes the gateway hold, where aiortc has none.

aiortc queues decoded frames until they are read (aiortc#554), counts every source (SSRC) that it has ever
seen, and keeps what arrives out of order whatever window it has announced. :func:`bound` is called once per
call, after the offer was applied and before media flow. It relies on what is private in aiortc;
``tests/unit/gateway/realtime/test_webrtc_network.py`` fails if it changes.
"""
# ruff: noqa: SLF001 - what has no bounds is private

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from aiortc import RTCPeerConnection, RTCSctpTransport
from aiortc.rtcdtlstransport import RTCDtlsTransport
from aiortc.rtcrtpreceiver import RemoteStreamTrack

from parley.errors import InvalidMessageError, OverloadedError, ParleyError
from parley_gateway.security.meter import Bucket

FRAMES = 256
"""Decoded ones that wait to be read: five seconds of 20 ms. Then the oldest are dropped."""
PACKETS_PER_S = 400.0
"""Of RTP: Opus has 50, and 400 of its shortest frames; over time, and so many at once."""
SOURCES = 8
"""A microphone has one; a further one when it is replaced."""
REORDERED = 2_048
"""Pieces of messages of the data channel that wait for those before them; its window has 900."""
STREAMS = 64
"""Channels, of which one is used."""
_SSRC = slice(8, 12)

_TakeRtp: TypeAlias = Callable[[bytes, int], Coroutine[Any, Any, None]]
_TakeSctp: TypeAlias = Callable[[bytes], Coroutine[Any, Any, None]]


def bound(connection: RTCPeerConnection, end: Callable[[ParleyError], None]) -> None:
    """Bound what a connection's client can make it hold.

    Args:
        connection: Its remote description is set.
        end: Ends the call, with a reason.
    """
    transports: set[RTCDtlsTransport] = set()
    for transceiver in connection.getTransceivers():
        transports.add(transceiver.receiver.transport)
        track = transceiver.receiver.track
        if isinstance(track, RemoteStreamTrack):
            # Read by the decoder's thread when it is started, and by track.recv().
            track._queue = Frames(FRAMES)
    for transport in transports:
        vars(transport)["_handle_rtp_data"] = _limited(transport._handle_rtp_data)
    if connection.sctp is not None:
        sctp = connection.sctp
        vars(sctp)["_handle_data"] = _watched(sctp, sctp._handle_data, end)


class Frames(asyncio.Queue[Any]):
    """The newest frames of a track."""

    async def put(self, item: Any) -> None:
        """Add one; where there is no room, the oldest makes it. Never waits."""
        if self.full():
            self.get_nowait()
        self.put_nowait(item)


def _limited(handle: _TakeRtp) -> _TakeRtp:
    """Take so many RTP packets over time, of so many sources; the others are lost."""
    room = Bucket(PACKETS_PER_S, 1.0, time.monotonic)
    sources: set[bytes] = set()

    async def limited(data: bytes, arrival_time_ms: int) -> None:
        source = data[_SSRC]
        if len(sources) < SOURCES:
            sources.add(source)
        if source in sources and not room.take(1):
            await handle(data, arrival_time_ms)

    return limited


def _watched(sctp: RTCSctpTransport, handle: _TakeSctp, end: Callable[[ParleyError], None]) -> _TakeSctp:
    """Take a packet of the data channel; a client that sends beyond the window ends its call."""

    async def watched(data: bytes) -> None:
        if not _is_within(sctp):
            end(OverloadedError("the data channel brings more than its window allows"))
            return
        try:
            await handle(data)
        except Exception as error:  # noqa: BLE001 - whatever the library stumbles over
            # The library asserts what a client could violate; its reader would end, and the call would not.
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
