"""Routes of the Realtime API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

from fastapi import APIRouter, FastAPI, Request
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.websockets import WebSocket

from parley.errors import ParleyError
from parley_gateway.apis.realtime.client_secrets import SecretSessions, create_secret
from parley_gateway.apis.realtime.output_audio import EventSpeaker
from parley_gateway.apis.realtime.resumption import ResumedSession, resume
from parley_gateway.apis.realtime.server_events import (
    ClientEventError,
    client_event_error,
    emitter,
    server_event,
)
from parley_gateway.apis.realtime.session import RealtimeSession
from parley_gateway.apis.realtime.session_config import SessionConfig, first_config
from parley_gateway.apis.realtime.transcription import TranscribingSession
from parley_gateway.apis.realtime.webrtc.calls import WebRtcCalls
from parley_gateway.apis.realtime.webrtc.sideband import Sideband
from parley_gateway.calls import hold_share
from parley_gateway.errors import ForbiddenError
from parley_gateway.gateway import Gateway
from parley_gateway.model_limits import ModelLimiter
from parley_gateway.security.principal import Principal
from parley_gateway.shares import Shares
from parley_gateway.websocket import (
    Close,
    SocketWriter,
    WebSocketSession,
    accept,
    close_of,
    refuse,
)

SUBPROTOCOL = "realtime"
_BETA = Close(4000, "beta_not_supported")


async def _serve(
    websocket: WebSocket,
    gateway: Gateway,
    secrets: SecretSessions,
    places: Shares,
    limiter: ModelLimiter,
) -> None:
    """Serve one WebSocket, from its request to its close; ``limiter`` bounds single stages."""
    with ExitStack() as stack:
        try:
            principal = await gateway.guard.identify(websocket)
            session_id = websocket.query_params.get("session_id")
            issuer = secrets.find_issuer(websocket) if session_id is None else ""
            if issuer and await gateway.peers.pass_on_websocket(websocket, issuer):
                return
            given = secrets.find(websocket)
            asked = (websocket.query_params.get("intent"), given.get("type"))
            transcribes = session_id is None and "transcription" in asked
            gateway.guard.authorize(websocket, principal, "transcribe" if transcribes else "agent")
            stack.enter_context(hold_share(places, principal, gateway.settings.calls, "connections"))
            slot = stack.enter_context(limiter.place(principal)) if transcribes else None
            if slot is None:
                gateway.calls.check_room(principal)
            if slot is None and session_id is None:
                model = websocket.query_params.get("model")
                config = await first_config(gateway, principal, model, given)
        except ParleyError as error:
            await refuse(websocket, error, gateway)
            return
        await accept(websocket, SUBPROTOCOL)
        refusal, resumed = _unsupported(websocket), None
        if refusal is None and session_id is not None:
            try:
                resumed = await resume(gateway, principal, session_id)
                config = resumed.config
            except ParleyError as error:
                refusal = client_event_error(error), close_of(error)
        if refusal is not None:
            writer = SocketWriter(websocket, gateway.settings.writer, gateway.metrics)
            writer.send_json(server_event("error", {"error": refusal[0].body()}))
            writer.close(*refusal[1])
            await writer.run()
        elif slot is not None:
            await TranscribingSession(websocket, gateway, slot, given).run()
        else:
            await _RealtimeSocket(
                websocket, gateway, principal, config, limiter=limiter, resumed=resumed
            ).run()


async def _join(websocket: WebSocket, gateway: Gateway, calls: WebRtcCalls, places: Shares) -> None:
    """Serve one WebSocket that joins a WebRTC call, from its request to its close."""
    with ExitStack() as stack:
        try:
            principal = await gateway.guard.admit(websocket, "agent")
            if principal.kind == "token":  # a browser has one of its own, and no right to others' calls
                raise ForbiddenError("a call is joined with a key, not with a token")
            peer = calls.find(websocket.query_params["call_id"], principal)
            stack.enter_context(hold_share(places, principal, gateway.settings.calls, "connections"))
        except ParleyError as error:
            await refuse(websocket, error, gateway)
            return
        await accept(websocket, SUBPROTOCOL)
        await Sideband(websocket, gateway, peer).run()


class _RealtimeSocket(WebSocketSession):
    """Client events in, server events out."""

    def __init__(
        self,
        websocket: WebSocket,
        gateway: Gateway,
        principal: Principal,
        config: SessionConfig,
        *,
        limiter: ModelLimiter,
        resumed: ResumedSession | None,
    ) -> None:
        super().__init__(websocket, gateway)
        emit = emitter(self.writer.send_json)
        speaker = EventSpeaker(emit, lambda: config.output_format)
        self._session = RealtimeSession(
            gateway, principal, config, emit, speaker, limiter=limiter, resumed=resumed
        )
        self._session.begin()

    @property
    def has_opened(self) -> bool:
        """See :class:`WebSocketSession`."""
        return self._session.has_opened

    def on_failed(self, error: ParleyError) -> None:
        """See :class:`WebSocketSession`."""
        self._session.conversation.on_call_failed(error)

    async def on_message(self, message: str | bytes) -> None:
        """See :class:`WebSocketSession`."""
        await self._session.on_client_event(message)

    async def send_events(self) -> None:
        """Run the session until it is over."""
        await self._session.run()
        self.close_after(self._session.closed)


def _unsupported(connection: HTTPConnection) -> tuple[ClientEventError, Close] | None:
    """The refusal of a connection, and how it is closed; None: the connection is supported."""
    offered = connection.scope.get("subprotocols", [])
    if "realtime=v1" in connection.headers.get("openai-beta", "") or "openai-beta.realtime-v1" in offered:
        message = "The beta form of the Realtime API is not supported; leave out the header OpenAI-Beta."
        return ClientEventError(message, code="beta_api_shape_disabled"), _BETA
    return None


def routes(gateway: Gateway) -> APIRouter:
    """``/v1/realtime``, its client secrets and its WebRTC calls."""
    secrets = SecretSessions(gateway.settings.realtime.secrets)
    limiter = ModelLimiter(gateway, "realtime")
    calls = WebRtcCalls(gateway, secrets, limiter)
    places = Shares(gateway.settings.calls.limit)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await calls.close()

    router = APIRouter(tags=["realtime"], lifespan=lifespan)

    @router.websocket("/v1/realtime")
    async def realtime(websocket: WebSocket) -> None:
        if "call_id" in websocket.query_params:
            await _join(websocket, gateway, calls, places)
        else:
            await _serve(websocket, gateway, secrets, places, limiter)

    @router.post("/v1/realtime/client_secrets")
    async def client_secret(request: Request) -> Response:
        """Create a short-lived token with which a browser opens a session."""
        return await create_secret(request, gateway, secrets)

    if gateway.settings.realtime.webrtc:
        router.post("/v1/realtime/calls", status_code=201, name="call")(calls.create)
        router.post("/v1/realtime/calls/{call_id}/hangup")(calls.hang_up)

    return router
