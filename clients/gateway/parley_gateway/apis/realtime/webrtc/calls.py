"""``/v1/realtime/calls``: WebRTC calls."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, aclosing, contextmanager
from typing import Any

import msgspec
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
from starlette.requests import Request
from starlette.responses import Response

from parley.errors import InvalidMessageError, OverloadedError, ParleyError
from parley.protocol import INPUT_SAMPLE_RATE
from parley.timeouts import cancel_all, hold_task, is_set_within, with_timeout
from parley_gateway.apis.realtime.client_events import check_shape, check_size
from parley_gateway.apis.realtime.client_secrets import SecretSessions
from parley_gateway.apis.realtime.resumption import ResumedSession, resume
from parley_gateway.apis.realtime.server_events import (
    ClientEventError,
    Emit,
    emitter,
    error_response,
    new_id,
)
from parley_gateway.apis.realtime.session import RealtimeSession
from parley_gateway.apis.realtime.session_config import SessionConfig, first_config
from parley_gateway.apis.realtime.webrtc import network
from parley_gateway.apis.realtime.webrtc.audio_track import TrackSpeaker
from parley_gateway.apis.realtime.webrtc.network import IceNetwork
from parley_gateway.apis.realtime.webrtc.offers import Offer
from parley_gateway.bodies import InvalidFormError, read_form
from parley_gateway.calls import hold_share
from parley_gateway.errors import ForbiddenError, NotFoundError, SessionExpiredError, WrongGatewayError
from parley_gateway.gateway import Gateway
from parley_gateway.instances import check_instance
from parley_gateway.model_limits import ModelLimiter
from parley_gateway.security.principal import Principal
from parley_gateway.shares import Shares

_log = logging.getLogger("parley.gateway")
# At INFO they log every pair of candidates.
for _name in ("aioice", "aiortc"):
    logging.getLogger(_name).setLevel(logging.WARNING)
CHANNEL = "oai-events"
_MAX_MESSAGES = 256
_MAX_MESSAGE_BYTES = 4_194_304
"""Size of all waiting messages."""
_MAX_BUFFERED_BYTES = 1_048_576
_MAX_JOINED = 4
"""Other connections of a call."""
_MAX_EARLY_EVENTS = 256
"""Events before the data channel is open."""
_CHANNEL_S = 2.0
"""Wait for the client's data channel; after that its audio is used without one (seconds)."""
_FLUSH_S = 1.0
"""Wait for the last events to be sent (seconds)."""
_FLUSH_CHECKS = 50
_PLAYBACK_REPORT_S = 0.1
_OFFER_S = 10.0
_CLOSE_S = 5.0
_CLOSE_ALL_S = 5.0
_ID = "rtc_"
_CONNECT = "_RTCPeerConnection__connect"
"""Private in aiortc; see :meth:`Peer._supervise_connecting`."""
_LONGEST_GAP_S = 1.0
"""A longer gap is a reset of the sender's clock, not lost packets."""


async def read_track(track: MediaStreamTrack) -> AsyncGenerator[NDArray[np.int16], None]:
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


class Peer:
    """One call: :meth:`answer` establishes it, :meth:`run` runs it to its end."""

    def __init__(
        self,
        call_id: str,
        gateway: Gateway,
        principal: Principal,
        config: SessionConfig,
        network: IceNetwork,
        *,
        limiter: ModelLimiter,
        resumed: ResumedSession | None = None,
    ) -> None:
        self.id = call_id
        self._network = network
        self.principal = principal
        self._gateway = gateway
        self._settings = gateway.settings.realtime
        self._meter = gateway.guard.meter()
        self._connection = RTCPeerConnection(
            RTCConfiguration(iceServers=_ice_servers(self._settings.ice_servers))
        )
        self._channel: RTCDataChannel | None = None
        self._early: list[str] = []
        self._received: asyncio.Queue[str | bytes] = asyncio.Queue(_MAX_MESSAGES)
        self._waiting_bytes = 0
        self._connected = asyncio.Event()
        self._ready = asyncio.Event()
        self._over: asyncio.Future[ParleyError | None] = asyncio.get_running_loop().create_future()
        self._microphone: asyncio.Future[MediaStreamTrack] = asyncio.get_running_loop().create_future()
        self._config = config
        self._resumes = resumed is not None
        self._joined: list[Callable[[dict[str, Any]], None]] = []
        """Send the call's events to its other connections."""
        self._handling = asyncio.Lock()
        self.ended = asyncio.Event()
        """Set when the call is over."""
        emit = emitter(self._send)
        self._speaker = TrackSpeaker(emit, self._on_played)
        self._session = RealtimeSession(
            gateway, principal, config, emit, self._speaker, limiter=limiter, webrtc=True, resumed=resumed
        )

    async def answer(self, offer: Offer) -> str:
        """Answer an SDP offer with an SDP answer.

        Raises:
            ClientEventError: the offer cannot be answered.
            DeadlineExceededError: no addresses were found in time.
            OverloadedError: no address or port is free.
        """
        connection = self._connection
        self._supervise_connecting()
        connection.on("datachannel", self._on_datachannel)
        connection.on("track", self._on_track)
        connection.on("connectionstatechange", self._on_state_change)
        has_answered = False
        try:
            await with_timeout(self._negotiate(offer.sdp), _OFFER_S, "WebRTC")
            answer = offer.answer(connection.localDescription.sdp)
            has_answered = True
        except ParleyError:
            raise
        except Exception as error:
            # aiortc raises exceptions of many types.
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
            network.use(transport, self._network)
        network.bound(connection, self._end)
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
            except Exception as error:  # noqa: BLE001 - aiortc raises exceptions of many types
                self._end(InvalidMessageError(f"the connection cannot be made: {type(error).__name__}"))

        vars(self._connection)[_CONNECT] = supervised

    async def _close(self) -> None:
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._connection.close()
        except TimeoutError:
            _log.warning("%s: the connection was not closed within %g s", self.id, _CLOSE_S)
        except Exception as error:  # noqa: BLE001 - an offer may be applied only in part
            _log.warning("%s: the connection was not closed: %r", self.id, error)

    def _on_played(self, response_id: str, played_ms: int) -> None:
        self._session.commands.report_playback(response_id, played_ms)

    def _on_datachannel(self, channel: RTCDataChannel) -> None:
        if channel.label != CHANNEL or self._channel is not None:
            return
        self._channel = channel
        channel.on("message", self._on_message)
        channel.on("close", self.hang_up)
        self._session.begin()
        early, self._early = self._early, []
        for event in early:
            channel.send(event)
        self._ready.set()

    def _on_track(self, track: MediaStreamTrack) -> None:
        if track.kind == "audio" and not self._microphone.done():
            self._microphone.set_result(track)

    def _on_state_change(self) -> None:
        state = self._connection.connectionState
        if state == "connected":
            self._connected.set()
        elif state in ("failed", "closed"):
            self.hang_up()

    def _on_message(self, message: str | bytes) -> None:
        try:
            self._meter.message(len(message))
            if self._waiting_bytes + len(message) > _MAX_MESSAGE_BYTES:
                raise OverloadedError(f"more than {_MAX_MESSAGE_BYTES} bytes of events are waiting")
            self._received.put_nowait(message)
            self._waiting_bytes += len(message)
        except asyncio.QueueFull:
            self._end(OverloadedError(f"{_MAX_MESSAGES} events are waiting"))
        except ParleyError as error:
            self._end(error)

    def hang_up(self) -> None:
        """End the call."""
        self._end(None)

    def end_session(self) -> None:
        """End the call for good: no other connection may go on with it."""
        self._session.has_hung_up = True
        self._end(None)

    @property
    def session_body(self) -> dict[str, Any]:
        """OpenAI's session object."""
        return self._config.body

    @contextmanager
    def joined_by(self, send: Callable[[dict[str, Any]], None]) -> Iterator[None]:
        """Let ``send`` have the call's events too; raises OverloadedError where too many do."""
        if len(self._joined) >= _MAX_JOINED:
            raise OverloadedError(f"{_MAX_JOINED} connections have joined the call already")
        self._joined.append(send)
        try:
            yield
        finally:
            self._joined.remove(send)

    async def on_side_event(self, message: str | bytes, emit: Emit) -> None:
        """Handle an event of a connection that has joined; ``emit`` gets the error where it is refused."""
        async with self._handling:
            await self._session.on_client_event(message, emit)

    async def run(self) -> None:
        """Run until one side ends the call."""
        tasks = [
            asyncio.create_task(work, name=f"{self.id} {name}")
            for name, work in (
                ("connection", self._connect()),
                ("session", self._session.run()),
                ("events", self._handle_events()),
                ("audio", self._forward_audio()),
                ("playback", self._report_playback()),
                ("shutdown", self._watch_shutdown()),
                ("credentials", self._gateway.guard.watch(principal=self.principal, scope="agent")),
            )
        ]
        try:
            # The connection's task ends when it is established; the end of any other task ends the call.
            ends: list[asyncio.Future[Any]] = [self._over, *tasks[1:]]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            results = await cancel_all(tasks)
            await self._finish(self._over.result() if self._over.done() else None, results)

    async def _connect(self) -> None:
        if not await is_set_within(self._connected, self._settings.ice_s):
            self._end(SessionExpiredError(f"no connection within {self._settings.ice_s:g} s"))

    async def _watch_shutdown(self) -> None:
        await self._gateway.calls.going_away.wait()
        self.hang_up()

    async def _handle_events(self) -> None:
        while True:
            message = await self._received.get()
            self._waiting_bytes -= len(message)
            async with self._handling:
                await self._session.on_client_event(message)

    async def _forward_audio(self) -> None:
        await self._connected.wait()
        # A session that goes on does so when its client is there; audio would open another.
        await is_set_within(self._ready, None if self._resumes else _CHANNEL_S)
        async with aclosing(read_track(await self._microphone)) as microphone:
            async for samples in microphone:
                self._session.conversation.push_audio(samples, 1000 * len(samples) / INPUT_SAMPLE_RATE)
                await self._session.commands.wait_for_room()
        self.hang_up()

    async def _report_playback(self) -> None:
        while True:
            await asyncio.sleep(_PLAYBACK_REPORT_S)
            self._speaker.report_playback()

    def _end(self, error: ParleyError | None) -> None:
        if not self._over.done():
            self._over.set_result(error)

    async def _finish(self, error: ParleyError | None, results: Sequence[Any]) -> None:
        for result in results:
            if isinstance(result, ParleyError):
                error = error or result
            elif isinstance(result, Exception):
                _log.error("%s: a WebRTC call failed", self.id, exc_info=result)
                error = error or ParleyError("the gateway failed; its log says why")
        if error is not None:
            self._gateway.metrics.on_call_failed(error, has_opened=self._session.has_opened)
            self._session.conversation.on_call_failed(error)
        for _ in range(_FLUSH_CHECKS):
            if self._channel is None or not self._channel.bufferedAmount:
                break
            await asyncio.sleep(_FLUSH_S / _FLUSH_CHECKS)
        await self._close()

    def _send(self, event: dict[str, Any]) -> None:
        for send in self._joined:
            send(event)
        raw = json.dumps(event, ensure_ascii=False)
        channel = self._channel
        if channel is None:
            if len(self._early) < _MAX_EARLY_EVENTS:
                self._early.append(raw)
        elif channel.readyState == "open":
            if channel.bufferedAmount > _MAX_BUFFERED_BYTES:
                self._end(OverloadedError("the client does not read its events"))
                return
            channel.send(raw)


def _ice_servers(urls: Sequence[str]) -> list[RTCIceServer]:
    """Servers of the format ``turn:user:password@host:port``; an empty list replaces aiortc's default."""
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


class WebRtcCalls:
    """All calls of the process; each has a task until it is over."""

    def __init__(self, gateway: Gateway, secrets: SecretSessions, limiter: ModelLimiter) -> None:
        self._gateway = gateway
        self._limiter = limiter
        self._secrets = secrets
        self._places = Shares(gateway.settings.calls.limit)
        self._network = IceNetwork.of(gateway.settings.realtime, gateway.settings.listen.host)
        self._peers: dict[str, Peer] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def create(self, request: Request) -> Response:
        """Answer the SDP offer of a WebRTC call."""
        with ExitStack() as place:
            try:
                principal = await self._gateway.guard.identify(request)
                if issuer := self._secrets.find_issuer(request):
                    answered = await self._gateway.peers.pass_on(request, issuer)
                    if answered is not None:
                        return answered
                self._gateway.guard.authorize(request, principal, "agent")
                # The call is opened only when the connection is established.
                self._gateway.calls.check_room(principal)
                settings = self._gateway.settings
                place.enter_context(hold_share(self._places, principal, settings.calls, "WebRTC calls"))
                text, session = await _read(request, settings.limits.body_bytes)
                offer = Offer(text, self._network.peers)
                config, resumed = await self._begin_session(request, principal, session)
                call_id = new_id(f"{_ID}{self._gateway.instance}")
                peer = Peer(
                    call_id,
                    self._gateway,
                    principal,
                    config,
                    self._network,
                    limiter=self._limiter,
                    resumed=resumed,
                )
                answer = await peer.answer(offer)
            except (ParleyError, ClientEventError) as error:
                self._gateway.metrics.refused.labels(error.code).inc()
                return error_response(error)
            self._begin(peer, place.pop_all())
        headers = {"Location": f"/v1/realtime/calls/{peer.id}"}
        return Response(answer, status_code=201, media_type="application/sdp", headers=headers)

    async def _begin_session(
        self, request: Request, principal: Principal, session: Mapping[str, Any]
    ) -> tuple[SessionConfig, ResumedSession | None]:
        """The settings of a new session, or of the one that goes on; ``session`` came with the offer."""
        session_id = request.query_params.get("session_id")
        if session_id is None:
            given = {**self._secrets.find(request), **session}
            model = request.query_params.get("model")
            return await first_config(self._gateway, principal, model, given, webrtc=True), None
        if session:
            raise ClientEventError("A session that goes on has its settings.", param="session")
        resumed = await resume(self._gateway, principal, session_id, webrtc=True)
        return resumed.config, resumed

    def find(self, call_id: str, principal: Principal) -> Peer:
        """A call of this principal.

        Raises:
            NotFoundError: there is none of this id.
            WrongGatewayError: another gateway has it.
            ForbiddenError: it belongs to another principal.
        """
        peer = self._peers.get(call_id)
        if peer is None:
            check_instance(self._gateway.instance, call_id.removeprefix(_ID))
            raise NotFoundError(f"there is no call {call_id[:100]!r}")
        if peer.principal.id != principal.id:
            raise ForbiddenError("the call belongs to another key")
        return peer

    async def hang_up(self, request: Request, call_id: str) -> Response:
        """End a WebRTC call."""
        try:
            principal = await self._gateway.guard.admit(request, "agent")
            peer = self.find(call_id, principal)
        except WrongGatewayError as error:
            return await self._gateway.peers.pass_on(request, error.instance) or error_response(error)
        except ParleyError as error:
            return error_response(error)
        peer.end_session()
        return Response(status_code=200)

    async def close(self) -> None:
        """End all calls."""
        for peer in self._peers.values():
            peer.hang_up()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSE_ALL_S)

    def _begin(self, peer: Peer, place: ExitStack) -> None:
        self._peers[peer.id] = peer
        hold_task(self._tasks, self._run(peer, place), peer.id)

    async def _run(self, peer: Peer, place: ExitStack) -> None:
        with place:
            try:
                await peer.run()
            finally:
                peer.ended.set()
                del self._peers[peer.id]


async def _read(request: Request, body_bytes: int) -> tuple[str, dict[str, Any]]:
    """The offer and the settings in a request; raises ClientEventError if they cannot be read."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/sdp":
        return (await request.body()).decode(errors="replace"), {}
    if kind != "multipart/form-data":
        message = "The offer must be application/sdp, or multipart/form-data with sdp and session."
        raise ClientEventError(message, code="invalid_content_type")
    try:
        fields = dict((await read_form(request, field_bytes=body_bytes))[0])
    except InvalidFormError as error:
        raise ClientEventError(f"The form cannot be read: {error}.") from error
    offer = fields.get("sdp")
    if offer is None:
        message = "Missing required parameter: 'sdp'."
        raise ClientEventError(message, code="missing_required_parameter", param="sdp")
    raw = fields.get("session", "{}")
    check_size(raw, "session")
    try:
        session = msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ClientEventError(f"The session cannot be read: {error}.", param="session") from error
    check_shape(session, "session")
    return offer, session
