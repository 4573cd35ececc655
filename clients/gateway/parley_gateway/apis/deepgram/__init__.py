"""Recognition and speech alone, in the form of Deepgram's interface."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.websockets import WebSocket

from parley_gateway.apis.deepgram.errors import answer
from parley_gateway.apis.deepgram.listen import serve_listening
from parley_gateway.apis.deepgram.query import ListenOptions, SpeakOptions
from parley_gateway.apis.deepgram.recordings import RecordingRoute
from parley_gateway.apis.deepgram.speak import serve_speaking
from parley_gateway.apis.deepgram.speech import SpeakBody, SpeechRoute
from parley_gateway.gateway import Gateway
from parley_gateway.model_limits import ModelLimiter
from parley_gateway.schemas import body
from parley_gateway.stage_documents import query, recording
from parley_gateway.stage_routes import route_class


def routes(gateway: Gateway) -> APIRouter:
    """``/v1/listen`` and ``/v1/speak``, both by WebSocket and by POST."""
    desk = ModelLimiter(gateway, "deepgram")
    router = APIRouter(prefix="/v1", tags=["deepgram"], route_class=route_class(answer, "dg-request-id"))
    listening = query(ListenOptions) | recording()
    speaking = query(SpeakOptions) | body(SpeakBody)
    router.post("/listen", response_model=None, openapi_extra=listening)(RecordingRoute(gateway, desk).create)
    router.post("/speak", response_model=None, openapi_extra=speaking)(SpeechRoute(gateway, desk).create)

    @router.websocket("/listen")
    async def listen(websocket: WebSocket) -> None:
        await serve_listening(websocket, gateway, desk)

    @router.websocket("/speak")
    async def speak(websocket: WebSocket) -> None:
        await serve_speaking(websocket, gateway, desk)

    return router
