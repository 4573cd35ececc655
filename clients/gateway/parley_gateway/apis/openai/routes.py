"""Routes of OpenAI's REST API for the single stages, and its lists of models and voices."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from parley_gateway.apis.openai.chat import ChatRequest, ChatRoute
from parley_gateway.apis.openai.embeddings import EmbeddingRequest, EmbeddingRoute
from parley_gateway.apis.openai.responses import ResponsesRequest, ResponsesRoute
from parley_gateway.apis.openai.rest import MODELS, answer, no_model
from parley_gateway.apis.openai.speech import SpeechRequest, SpeechRoute
from parley_gateway.apis.openai.transcriptions import TranscriptionFields, TranscriptionRoute
from parley_gateway.failures import route_class
from parley_gateway.gateway import Gateway
from parley_gateway.model_limits import ModelLimiter
from parley_gateway.schemas import body, form
from parley_gateway.security.principal import Principal
from parley_gateway.streaming import StageRoute, while_connected
from parley_gateway.voice_owners import may_use
from parley_stages import Synthesis
from parley_stages.server import is_model_ready

_TIMEOUT_S = 5.0


class CatalogueRoutes(StageRoute):
    """Lists models and voices."""

    async def models(self, request: Request) -> Response:
        """The models that the server serves."""
        principal = await self._gateway.guard.admit(request, "chat")
        ready = await while_connected(request, self._ready(principal))
        return JSONResponse({"object": "list", "data": [_model(name) for name in ready]})

    async def model(self, request: Request, model_id: str) -> Response:
        """One model."""
        principal = await self._gateway.guard.admit(request, "chat")
        ready = await while_connected(request, self._ready(principal))
        if model_id not in ready:
            raise no_model(model_id)
        return JSONResponse(_model(model_id))

    async def voices(self, request: Request) -> Response:
        """The voices of the synthesizers."""
        principal = await self._gateway.guard.admit(request, "speak")
        voices = await while_connected(request, self._voices(principal))
        return JSONResponse({"object": "list", "data": voices})

    async def _ready(self, principal: Principal) -> list[str]:
        with self._limiter.lease(principal) as server:
            asked = (is_model_ready(server.channel, name, _TIMEOUT_S) for name in MODELS)
            ready = await asyncio.gather(*asked)
        return [name for name, is_ready in zip(MODELS, ready, strict=True) if is_ready]

    async def _voices(self, principal: Principal) -> list[dict[str, Any]]:
        with self._limiter.lease(principal) as server:
            async with Synthesis(server, model=self._settings.synthesizer) as synthesis:
                return [
                    {
                        "id": voice.voice_id,
                        "object": "audio.voice",
                        "name": voice.name,
                        "created_at": 0,
                        "languages": list(voice.languages),
                        "model": voice.synthesizer,
                        "gender": voice.gender or None,
                        "description": voice.description or None,
                    }
                    for voice in await synthesis.voices()
                    if may_use(voice.voice_id, principal)
                ]


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "parley"}


def routes(gateway: Gateway) -> APIRouter:
    """``/v1/audio/*``, ``/v1/chat/completions``, ``/v1/responses``, ``/v1/embeddings`` and ``/v1/models``."""
    limiter = ModelLimiter(gateway, "openai")
    router = APIRouter(prefix="/v1", tags=["openai"], route_class=route_class(answer, "x-request-id"))
    catalogue = CatalogueRoutes(gateway, limiter)
    router.post("/audio/transcriptions", response_model=None, openapi_extra=form(TranscriptionFields))(
        TranscriptionRoute(gateway, limiter).create
    )
    router.post("/audio/speech", response_model=None, openapi_extra=body(SpeechRequest))(
        SpeechRoute(gateway, limiter).create
    )
    router.post("/chat/completions", response_model=None, openapi_extra=body(ChatRequest))(
        ChatRoute(gateway, limiter).create
    )
    router.post("/responses", response_model=None, openapi_extra=body(ResponsesRequest))(
        ResponsesRoute(gateway, limiter).create
    )
    router.post("/embeddings", response_model=None, openapi_extra=body(EmbeddingRequest))(
        EmbeddingRoute(gateway, limiter).create
    )
    router.get("/audio/voices", response_model=None)(catalogue.voices)
    router.get("/models", response_model=None)(catalogue.models)
    router.get("/models/{model_id}", response_model=None)(catalogue.model)
    return router
