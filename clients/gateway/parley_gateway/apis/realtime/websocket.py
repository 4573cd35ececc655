"""``/v1/realtime`` as a WebSocket."""

from __future__ import annotations

from contextlib import ExitStack

from starlette.requests import HTTPConnection
from starlette.websockets import WebSocket

from parley.errors import ParleyError
from parley_gateway.apis.realtime.client_secrets import SecretSessions
from parley_gateway.apis.realtime.output_audio import EventSpeaker, Speaker
from parley_gateway.apis.realtime.places import ConnectionSlots
from parley_gateway.apis.realtime.server_events import ClientEventError, Emit, server_event
from parley_gateway.apis.realtime.session import RealtimeSession
from parley_gateway.apis.realtime.session_config import first_config
from parley_gateway.apis.realtime.transcription import TranscribingSession
from parley_gateway.closing import Close, close_of_call
from parley_gateway.gateway import Gateway
from parley_gateway.model_limits import ModelLimiter
from parley_gateway.security.principal import Principal
from parley_gateway.sockets import accept, messages, refuse, run_socket, until_going_away
from parley_gateway.writer import SocketWriter

SUBPROTOCOL = "realtime"
_BETA = Close(4000, "beta_not_supported")
_UNKNOWN_CALL = Close(4004, "call_not_found")


class RealtimeSockets:
    """All WebSockets of the API.

    Args:
        gateway: The parts of the process.
        secrets: Settings that clients bring with their secrets.
        desk: Bounds the sessions that only transcribe.
    """

    def __init__(self, gateway: Gateway, secrets: SecretSessions, desk: ModelLimiter) -> None:
        self._gateway = gateway
        self._secrets = secrets
        self._desk = desk
        self._places = ConnectionSlots(gateway.settings.calls, "connections")

    async def serve(self, websocket: WebSocket) -> None:
        """Hold one session over one WebSocket, from the request to the goodbye."""
        with ExitStack() as stack:
            try:
                given = self._secrets.find(websocket)
                transcribes = (
                    websocket.query_params.get("intent") == "transcription"
                    or given.get("type") == "transcription"
                )
                principal = await self._gateway.guard.admit(
                    websocket, "transcribe" if transcribes else "agent"
                )
                stack.enter_context(self._places.take(principal))
                desk = stack.enter_context(self._desk.place(principal)) if transcribes else None
                if desk is None:
                    self._gateway.calls.check_room(principal)
            except ParleyError as error:
                await refuse(websocket, error, self._gateway)
                return
            await accept(websocket, SUBPROTOCOL)
            writer = SocketWriter(websocket, self._gateway.settings.writer, self._gateway.metrics)
            if (refusal := _unsupported(websocket)) is not None:
                writer.send_json(server_event("error", {"error": refusal[0].body()}))
                writer.close(*refusal[1])
                await writer.run()
            elif desk is not None:
                session = TranscribingSession(self._gateway, desk, writer, given)
                await session.serve(websocket, principal)
            else:
                await _Socket(websocket, self._gateway, writer, principal, given).serve()


class _Socket:
    """Both directions of one session."""

    def __init__(
        self,
        websocket: WebSocket,
        gateway: Gateway,
        writer: SocketWriter,
        principal: Principal,
        given: dict[str, object],
    ) -> None:
        self._websocket = websocket
        self._gateway = gateway
        self._writer = writer
        self._meter = gateway.guard.meter(principal)
        config = first_config(gateway, websocket.query_params.get("model"), given)

        def speaker(emit: Emit) -> Speaker:
            return EventSpeaker(emit, lambda: config.output_format)

        self._session = RealtimeSession(gateway, principal, config, writer.send_json, speaker)

    async def serve(self) -> None:
        """Until one side ends it."""
        self._session.begin()
        await run_socket(
            self._writer,
            self._gateway,
            self._hear(),
            self._speak(),
            until_going_away(self._gateway),
            on_error=self._session.fail,
        )

    async def _hear(self) -> None:
        async for message in messages(self._websocket, self._meter, self._gateway):
            await self._session.take(message)

    async def _speak(self) -> None:
        await self._session.run()
        closed = self._session.closed
        if closed is not None and not self._gateway.calls.going_away.is_set():
            self._writer.close(*close_of_call(closed.reason))


def _unsupported(connection: HTTPConnection) -> tuple[ClientEventError, Close] | None:
    """Why a connection cannot be served; None: it can."""
    offered = connection.scope.get("subprotocols", [])
    if "realtime=v1" in connection.headers.get("openai-beta", "") or "openai-beta.realtime-v1" in offered:
        message = "The beta form of the Realtime API is not supported; leave out the header OpenAI-Beta."
        return ClientEventError(message, code="beta_api_shape_disabled"), _BETA
    if "call_id" in connection.query_params:
        message = "A running call cannot be joined by WebSocket; use its data channel."
        return ClientEventError(message, code="call_id_not_supported", param="call_id"), _UNKNOWN_CALL
    return None
