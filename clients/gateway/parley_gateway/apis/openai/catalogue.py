"""``GET /v1/models`` and ``/v1/audio/voices``."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
from fastapi import Request
from starlette.responses import JSONResponse, Response
from tritonclient.grpc import service_pb2, service_pb2_grpc

from parley_client.channel import error_of
from parley_client.stages import Synthesis
from parley_gateway.apis.openai.names import MODELS, no_model
from parley_gateway.gateway import Gateway
from parley_gateway.model_limits import ModelLimiter
from parley_gateway.security.principal import Principal
from parley_gateway.streaming import while_connected

_TIMEOUT_S = 5.0


class CatalogueRoutes:
    """Tells what there is."""

    def __init__(self, gateway: Gateway, desk: ModelLimiter) -> None:
        self._gateway = gateway
        self._settings = gateway.settings.stages
        self._desk = desk

    async def models(self, request: Request) -> Response:
        """The models that can be named in requests."""
        principal = await self._gateway.guard.admit(request, "chat")
        ready = await while_connected(request, self._ready(principal))
        return JSONResponse({"object": "list", "data": [_model(name) for name in ready]})

    async def model(self, request: Request, model_id: str) -> Response:
        """One of them."""
        principal = await self._gateway.guard.admit(request, "chat")
        ready = await while_connected(request, self._ready(principal))
        if model_id not in ready:
            raise no_model(model_id, ready)
        return JSONResponse(_model(model_id))

    async def voices(self, request: Request) -> Response:
        """The voices that can be named in requests for speech."""
        principal = await self._gateway.guard.admit(request, "speak")
        voices = await while_connected(request, self._voices(principal))
        return JSONResponse({"object": "list", "data": voices})

    async def _ready(self, principal: Principal) -> list[str]:
        with self._desk.lease(principal) as server:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(server.channel)

            async def is_ready(name: str) -> bool:
                try:
                    reply = await stub.ModelReady(
                        service_pb2.ModelReadyRequest(name=name), timeout=_TIMEOUT_S
                    )
                except grpc.aio.AioRpcError as error:
                    raise error_of(error) from error
                return bool(reply.ready)

            ready = await asyncio.gather(*map(is_ready, MODELS))
        return [name for name, there in zip(MODELS, ready, strict=True) if there]

    async def _voices(self, principal: Principal) -> list[dict[str, Any]]:
        with self._desk.lease(principal) as server:
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
                ]


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "parley"}
