"""One WebRTC call: the peer connection, its data channel and its session."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from aiortc import (
    MediaStreamTrack,
    RTCConfiguration,
    RTCDataChannel,
    RTCIceServer,
    RTCIceTransport,
    RTCPeerConnection,
    RTCSessionDescription,
)
from aiortc.mediastreams import MediaStreamError
from av import AudioFrame, AudioResampler
from numpy.typing import NDArray

from parley.errors import DeadlineExceededError, InvalidMessageError, OverloadedError, ParleyError
from parley.protocol import INPUT_SAMPLE_RATE
from parley_gateway.apis.realtime.server_events import ClientEventError, Emit
from parley_gateway.apis.realtime.session import RealtimeSession
from parley_gateway.apis.realtime.session_config import SessionConfig
from parley_gateway.apis.realtime.webrtc import floods, ice
from parley_gateway.apis.realtime.webrtc.audio_track import TrackSpeaker
from parley_gateway.apis.realtime.webrtc.offers import Offer
from parley_gateway.errors import SessionExpiredError
from parley_gateway.gateway import Gateway
from parley_gateway.security.admission import AdmittedCaller
from parley_gateway.sockets import until_going_away

_LONGEST_GAP_S = 1.0
"""A longer one is a new beginning of the sender's clock, not lost packets."""


async def heard(track: MediaStreamTrack) -> AsyncIterator[NDArray[np.int16]]:
    """Pieces of mono audio at 16 kHz, int16 [n], until the track ends; lost packets become silence."""
    resampler = AudioResampler(format="s16", layout="mono", rate=INPUT_SAMPLE_RATE)
    due: int | None = None
    while True:
        try:
            frame = await track.recv()
        except MediaStreamError:
            return
        assert isinstance(frame, AudioFrame)
        lost = _lost_samples(frame, due)
        if lost:
            yield np.zeros(lost, np.int16)
        if frame.pts is not None:
            due = frame.pts + frame.samples
        for piece in resampler.resample(frame):
            yield piece.to_ndarray().reshape(-1).astype(np.int16, copy=False)


def _lost_samples(frame: AudioFrame, due: int | None) -> int:
    """Samples at 16 kHz between the end of the last frame and the beginning of this one."""
    if due is None or frame.pts is None or frame.pts <= due:
        return 0
    lost_s = (frame.pts - due) / frame.sample_rate
    return round(lost_s * INPUT_SAMPLE_RATE) if lost_s <= _LONGEST_GAP_S else 0


_log = logging.getLogger("parley.gateway")
# They tell of every pair of addresses that is tried.
for _name in ("aioice", "aiortc"):
    logging.getLogger(_name).setLevel(logging.WARNING)
CHANNEL = "oai-events"
_MESSAGES = 256
_MESSAGE_BYTES = 4_194_304
"""What they may hold altogether."""
_BUFFERED_BYTES = 1_048_576
_EARLY_EVENTS = 256
"""Events before there is a channel for them."""
_CHANNEL_S = 2.0
"""A client that opens no channel is heard all the same after so long (seconds)."""
_GOODBYE_S = 1.0
"""The last events may take so long to leave (seconds)."""
_GOODBYE_CHECKS = 50
_OFFER_S = 10.0
_CLOSE_S = 5.0
_CONNECT = "_RTCPeerConnection__connect"
"""Private in aiortc; see :meth:`Peer._supervise_connecting`."""


class Peer:
    """One call; :meth:`answer` begins it, :meth:`run` is its life.

    Args:
        call_id: As the client knows it.
        gateway: The parts of the process.
        admission: Whose call it is.
        config: The session's settings.
        network: Where it sends and receives.
    """

    def __init__(
        self,
        call_id: str,
        gateway: Gateway,
        admission: AdmittedCaller,
        config: SessionConfig,
        network: ice.IceNetwork,
    ) -> None:
        self.id = call_id
        self._network = network
        self.principal = principal = admission.principal
        self._admission = admission
        self._gateway = gateway
        self._settings = gateway.settings.realtime
        self._meter = gateway.guard.meter(principal)
        self._connection = RTCPeerConnection(
            RTCConfiguration(iceServers=_ice_servers(self._settings.ice_servers))
        )
        self._channel: RTCDataChannel | None = None
        self._early: list[str] = []
        self._received: asyncio.Queue[str | bytes] = asyncio.Queue(_MESSAGES)
        self._waiting_bytes = 0
        self._connected = asyncio.Event()
        self._ready = asyncio.Event()
        self._over: asyncio.Future[ParleyError | None] = asyncio.get_running_loop().create_future()
        self._microphone: asyncio.Future[MediaStreamTrack] = asyncio.get_running_loop().create_future()
        self._speaker: TrackSpeaker | None = None

        def speaker(emit: Emit) -> TrackSpeaker:
            self._speaker = TrackSpeaker(emit, self._mark)
            return self._speaker

        self._session = RealtimeSession(gateway, principal, config, self._send, speaker, webrtc=True)

    # --- beginning --------------------------------------------------------------------------

    async def answer(self, offer: Offer) -> str:
        """Answer an SDP offer with an SDP answer.

        Raises:
            Refusal: it cannot be answered.
            DeadlineExceededError: no addresses were found in time.
            OverloadedError: there is no address or port for it.
        """
        connection = self._connection
        self._supervise_connecting()
        connection.on("datachannel", self._take_channel)
        connection.on("track", self._take_track)
        connection.on("connectionstatechange", self._note_state)
        has_answered = False
        try:
            async with asyncio.timeout(_OFFER_S):
                await self._negotiate(offer.sdp)
            answer = offer.answer(connection.localDescription.sdp)
            has_answered = True
        except TimeoutError as error:
            raise DeadlineExceededError(f"no answer to the offer within {_OFFER_S:g} s") from error
        except ParleyError:
            raise
        except Exception as error:
            # The library raises whatever it stumbles over.
            message = f"The offer cannot be answered: {type(error).__name__}."
            raise ClientEventError(message, code="invalid_offer") from error
        finally:
            if not has_answered:
                await self._close()
        return answer

    async def _negotiate(self, offer: str) -> None:
        connection = self._connection
        await connection.setRemoteDescription(RTCSessionDescription(offer, "offer"))
        for transport in self._transports():
            ice.use(transport, self._network)
        floods.bound(connection, self._end)
        assert self._speaker is not None
        connection.addTrack(self._speaker.track)
        await connection.setLocalDescription(await connection.createAnswer())

    def _transports(self) -> set[RTCIceTransport]:
        connection = self._connection
        dtls = [transceiver.receiver.transport for transceiver in connection.getTransceivers()]
        if connection.sctp is not None:
            dtls.append(connection.sctp.transport)
        return {one.transport for one in dtls}

    def _supervise_connecting(self) -> None:
        """End the call when ICE or DTLS raises.

        aiortc connects in a task that nothing awaits. A transport that was stopped before the task reaches it
        raises (``InvalidStateError``), and so may DTLS.
        """
        connect = getattr(self._connection, _CONNECT)

        async def supervised() -> None:
            try:
                await connect()
            except Exception as error:  # noqa: BLE001 - the library raises whatever it stumbles over
                self._end(InvalidMessageError(f"the connection cannot be made: {type(error).__name__}"))

        vars(self._connection)[_CONNECT] = supervised

    async def _close(self) -> None:
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._connection.close()
        except TimeoutError:
            _log.warning("%s: the connection was not closed within %g s", self.id, _CLOSE_S)
        except Exception as error:  # noqa: BLE001 - of an offer that could not be applied as a whole
            _log.warning("%s: the connection was not closed: %r", self.id, error)

    def _mark(self, response_id: str, played_ms: int) -> None:
        self._session.uplink.played(response_id, played_ms)

    def _take_channel(self, channel: RTCDataChannel) -> None:
        if channel.label != CHANNEL or self._channel is not None:
            return
        self._channel = channel
        channel.on("message", self._take_message)
        channel.on("close", self.hang_up)
        self._session.begin()
        early, self._early = self._early, []
        for event in early:
            channel.send(event)
        self._ready.set()

    def _take_track(self, track: MediaStreamTrack) -> None:
        if track.kind == "audio" and not self._microphone.done():
            self._microphone.set_result(track)

    def _note_state(self) -> None:
        state = self._connection.connectionState
        if state == "connected":
            self._connected.set()
        elif state in ("failed", "closed"):
            self.hang_up()

    def _take_message(self, message: str | bytes) -> None:
        try:
            self._meter.message(len(message))
            if self._waiting_bytes + len(message) > _MESSAGE_BYTES:
                raise OverloadedError(f"more than {_MESSAGE_BYTES} bytes of events wait to be dealt with")
            self._received.put_nowait(message)
            self._waiting_bytes += len(message)
        except asyncio.QueueFull:
            self._end(OverloadedError(f"{_MESSAGES} events wait to be dealt with"))
        except ParleyError as error:
            self._end(error)

    # --- life -------------------------------------------------------------------------------

    def hang_up(self) -> None:
        """End the call."""
        self._end(None)

    async def run(self) -> None:
        """Hold the call until one side ends it."""
        tasks = [
            asyncio.create_task(work, name=f"{self.id} {name}")
            for name, work in (
                ("connection", self._connect()),
                ("session", self._session.run()),
                ("events", self._take_events()),
                ("audio", self._hear()),
                ("marks", self._tell_played()),
                ("farewell", self._watch_process()),
                ("credentials", self._admission.until_revoked()),
            )
        ]
        try:
            # A connection that has come about is no end; whatever else stops, the call cannot do without.
            ends: list[asyncio.Future[Any]] = [self._over, *tasks[1:]]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            await self._say_goodbye(self._over.result() if self._over.done() else None, results)

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(self._settings.ice_s):
                await self._connected.wait()
        except TimeoutError:
            self._end(SessionExpiredError(f"no connection within {self._settings.ice_s:g} s"))

    async def _watch_process(self) -> None:
        await until_going_away(self._gateway)
        self.hang_up()

    async def _take_events(self) -> None:
        while True:
            message = await self._received.get()
            self._waiting_bytes -= len(message)
            await self._session.take(message)

    async def _hear(self) -> None:
        await self._connected.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(_CHANNEL_S):
                await self._ready.wait()
        async for samples in heard(await self._microphone):
            self._session.conversation.hear_user(samples, 1000 * len(samples) / INPUT_SAMPLE_RATE)
            await self._session.uplink.room()
        self.hang_up()

    async def _tell_played(self) -> None:
        while True:
            await asyncio.sleep(0.1)
            if self._speaker is not None:
                self._speaker.tell_played()

    def _end(self, error: ParleyError | None) -> None:
        if not self._over.done():
            self._over.set_result(error)

    async def _say_goodbye(self, error: ParleyError | None, results: Sequence[Any]) -> None:
        for result in results:
            if isinstance(result, ParleyError):
                error = error or result
            elif isinstance(result, Exception):
                _log.error("%s: a WebRTC call failed", self.id, exc_info=result)
                error = error or ParleyError("the gateway failed; its log says why")
        if error is not None:
            self._session.fail(error)
        for _ in range(_GOODBYE_CHECKS):
            if self._channel is None or not self._channel.bufferedAmount:
                break
            await asyncio.sleep(_GOODBYE_S / _GOODBYE_CHECKS)
        await self._close()

    # --- events -----------------------------------------------------------------------------

    def _send(self, event: dict[str, Any]) -> None:
        raw = json.dumps(event, ensure_ascii=False)
        channel = self._channel
        if channel is None:
            if len(self._early) < _EARLY_EVENTS:
                self._early.append(raw)
        elif channel.readyState == "open":
            if channel.bufferedAmount > _BUFFERED_BYTES:
                self._end(OverloadedError("the client does not read its events"))
                return
            channel.send(raw)


def _ice_servers(urls: Sequence[str]) -> list[RTCIceServer]:
    """Servers of the form ``turn:user:password@host:port``; none is asked that is not named."""
    servers = []
    for url in urls:
        scheme, _, rest = url.partition(":")
        credentials, at, host = rest.rpartition("@")
        user, _, password = credentials.partition(":")
        if at:
            servers.append(RTCIceServer(urls=f"{scheme}:{host}", username=user, credential=password))
        else:
            servers.append(RTCIceServer(urls=url))
    return servers
