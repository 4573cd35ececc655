"""Recognition, language model and speech alone, in the form of OpenAI's REST interface."""

from __future__ import annotations

from fastapi import APIRouter

from parley_gateway.apis.openai.catalogue import CatalogueRoutes
from parley_gateway.apis.openai.chat import ChatRoute
from parley_gateway.apis.openai.chat_request import ChatRequest
from parley_gateway.apis.openai.errors import answer
from parley_gateway.apis.openai.speech import SpeechRequest, SpeechRoute
from parley_gateway.apis.openai.transcription_request import TranscriptionFields
from parley_gateway.apis.openai.transcriptions import TranscriptionRoute
from parley_gateway.gateway import Gateway
from parley_gateway.model_limits import ModelLimiter
from parley_gateway.schemas import body
from parley_gateway.stage_documents import form
from parley_gateway.stage_routes import route_class


def routes(gateway: Gateway) -> APIRouter:
    """``/v1/audio/*``, ``/v1/chat/completions`` and ``/v1/models``."""
    desk = ModelLimiter(gateway, "openai")
    router = APIRouter(prefix="/v1", tags=["openai"], route_class=route_class(answer, "x-request-id"))
    catalogue = CatalogueRoutes(gateway, desk)
    router.post("/audio/transcriptions", response_model=None, openapi_extra=form(TranscriptionFields))(
        TranscriptionRoute(gateway, desk).create
    )
    router.post("/audio/speech", response_model=None, openapi_extra=body(SpeechRequest))(
        SpeechRoute(gateway, desk).create
    )
    router.post("/chat/completions", response_model=None, openapi_extra=body(ChatRequest))(
        ChatRoute(gateway, desk).create
    )
    router.get("/audio/voices", response_model=None)(catalogue.voices)
    router.get("/models", response_model=None)(catalogue.models)
    router.get("/models/{model_id}", response_model=None)(catalogue.model)
    return router
