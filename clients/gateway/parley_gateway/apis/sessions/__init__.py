"""Sessions by REST, and their streams by WebSocket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import APIRouter, FastAPI
from starlette.websockets import WebSocket

from parley_gateway.apis.sessions.registry import SessionRegistry
from parley_gateway.apis.sessions.routes import rest_routes
from parley_gateway.apis.sessions.stream import serve_stream
from parley_gateway.gateway import Gateway


def routes(gateway: Gateway) -> APIRouter:
    """``/v1/sessions``: create, stream, ask, end."""
    book = SessionRegistry(gateway.settings.sessions)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        book.close()

    router = APIRouter(lifespan=lifespan)
    router.include_router(rest_routes(gateway, book))

    @router.websocket("/v1/sessions/{session_id}/stream")
    async def stream(websocket: WebSocket, session_id: str) -> None:
        await serve_stream(websocket, session_id, gateway, book)

    return router
