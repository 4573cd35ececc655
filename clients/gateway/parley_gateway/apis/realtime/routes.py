"""The API's routes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import APIRouter, FastAPI, Request
from starlette.responses import Response
from starlette.websockets import WebSocket

from parley_gateway.apis.realtime.client_secrets import SecretSessions, create_secret
from parley_gateway.apis.realtime.webrtc.calls import WebRtcCalls
from parley_gateway.apis.realtime.websocket import RealtimeSockets
from parley_gateway.gateway import Gateway
from parley_gateway.model_limits import ModelLimiter


def routes(gateway: Gateway) -> APIRouter:
    """``/v1/realtime`` and what belongs to it."""
    secrets = SecretSessions(gateway.settings.realtime.secrets)
    calls = WebRtcCalls(gateway, secrets)
    sockets = RealtimeSockets(gateway, secrets, ModelLimiter(gateway, "realtime"))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await calls.close()

    router = APIRouter(tags=["realtime"], lifespan=lifespan)

    @router.websocket("/v1/realtime")
    async def realtime(websocket: WebSocket) -> None:
        await sockets.serve(websocket)

    @router.post("/v1/realtime/client_secrets")
    async def client_secret(request: Request) -> Response:
        """A short-lived token with which a browser opens a session."""
        return await create_secret(request, gateway, secrets)

    if gateway.settings.realtime.webrtc:

        @router.post("/v1/realtime/calls", status_code=201)
        async def call(request: Request) -> Response:
            """Answer the SDP offer of a WebRTC call."""
            return await calls.create(request)

        @router.post("/v1/realtime/calls/{call_id}/hangup")
        async def hang_up(request: Request, call_id: str) -> Response:
            """End a WebRTC call."""
            return await calls.hang_up(request, call_id)

    return router
