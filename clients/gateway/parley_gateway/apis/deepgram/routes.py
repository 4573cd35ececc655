"""Routes of Deepgram's API."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.websockets import WebSocket

from parley_gateway.apis.deepgram.listen import RecordingRoute, serve_listening
from parley_gateway.apis.deepgram.messages import answer
from parley_gateway.apis.deepgram.query import ListenOptions, SpeakOptions
from parley_gateway.apis.deepgram.speak import SpeakBody, SpeakRoute, serve_speaking
from parley_gateway.failures import route_class
from parley_gateway.gateway import Gateway
from parley_gateway.model_limits import ModelLimiter
from parley_gateway.schemas import body, query, recording


def routes(gateway: Gateway) -> APIRouter:
    """``/v1/listen`` and ``/v1/speak``, both by WebSocket and by POST."""
    limiter = ModelLimiter(gateway, "deepgram")
    router = APIRouter(prefix="/v1", tags=["deepgram"], route_class=route_class(answer, "dg-request-id"))
    listening = query(ListenOptions) | recording()
    speaking = query(SpeakOptions) | body(SpeakBody)
    router.post("/listen", response_model=None, openapi_extra=listening)(
        RecordingRoute(gateway, limiter).create
    )
    router.post("/speak", response_model=None, openapi_extra=speaking)(SpeakRoute(gateway, limiter).create)

    @router.websocket("/listen")
    async def listen(websocket: WebSocket) -> None:
        await serve_listening(websocket, gateway, limiter)

    @router.websocket("/speak")
    async def speak(websocket: WebSocket) -> None:
        await serve_speaking(websocket, gateway, limiter)

    return router
