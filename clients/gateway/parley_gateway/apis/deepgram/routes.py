"""Routes of Deepgram's API."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.websockets import WebSocket

from parley_gateway.apis.deepgram.converse import serve_converse
from parley_gateway.apis.deepgram.flux import serve_flux
from parley_gateway.apis.deepgram.listen import RecordingRoute, serve_listening
from parley_gateway.apis.deepgram.messages import answer
from parley_gateway.apis.deepgram.query import ListenOptions, SpeakOptions
from parley_gateway.apis.deepgram.speak import SpeakBody, SpeakRoute, serve_speaking
from parley_gateway.failures import route_class
from parley_gateway.gateway import Gateway
from parley_gateway.model_limits import ModelLimiter
from parley_gateway.schemas import body, query, recording
from parley_gateway.shares import Shares


def routes(gateway: Gateway) -> APIRouter:
    """``/v1/listen`` and ``/v1/speak``, by WebSocket and by POST, ``/v2/listen``, ``/v1/agent/converse``."""
    limiter = ModelLimiter(gateway, "deepgram")
    places = Shares(gateway.settings.calls.limit)
    router = APIRouter(tags=["deepgram"], route_class=route_class(answer, "dg-request-id"))
    listening = query(ListenOptions) | recording()
    speaking = query(SpeakOptions) | body(SpeakBody)
    router.post("/v1/listen", response_model=None, openapi_extra=listening)(
        RecordingRoute(gateway, limiter).create
    )
    router.post("/v1/speak", response_model=None, openapi_extra=speaking)(SpeakRoute(gateway, limiter).create)

    @router.websocket("/v1/listen")
    async def listen(websocket: WebSocket) -> None:
        await serve_listening(websocket, gateway, limiter)

    @router.websocket("/v1/speak")
    async def speak(websocket: WebSocket) -> None:
        await serve_speaking(websocket, gateway, limiter)

    @router.websocket("/v2/listen")
    async def flux(websocket: WebSocket) -> None:
        await serve_flux(websocket, gateway)

    @router.websocket("/v1/agent/converse")
    async def converse(websocket: WebSocket) -> None:
        await serve_converse(websocket, gateway, places)

    return router
