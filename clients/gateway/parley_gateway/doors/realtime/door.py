"""The door's routes."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.websockets import WebSocket

from parley_gateway.doors.realtime.secret_sessions import SecretSessions, create_secret
from parley_gateway.doors.realtime.websocket import serve_websocket
from parley_gateway.gateway import Gateway


def routes(gateway: Gateway) -> APIRouter:
    """``/v1/realtime`` and what belongs to it."""
    router = APIRouter(tags=["realtime"])
    secrets = SecretSessions(gateway.settings.realtime.secrets)

    @router.websocket("/v1/realtime")
    async def realtime(websocket: WebSocket) -> None:
        await serve_websocket(websocket, gateway, secrets)

    @router.post("/v1/realtime/client_secrets")
    async def client_secret(request: Request) -> Response:
        """A short-lived token with which a browser opens a session."""
        return await create_secret(request, gateway, secrets)

    return router
