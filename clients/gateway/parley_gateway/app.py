"""The ASGI application."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from importlib.metadata import version
from typing import Any, TypeAlias

import msgspec
from fastapi import APIRouter, FastAPI
from starlette.responses import Response

from parley.tracing import open_tracing
from parley_client.transport import Transport
from parley_gateway.agent_descriptions import AgentDescriptions
from parley_gateway.apis import agent, operations, page, recorded_calls, tokens, voices
from parley_gateway.apis.deepgram import routes as deepgram
from parley_gateway.apis.openai import routes as openai
from parley_gateway.apis.realtime import routes as realtime
from parley_gateway.apis.sessions import routes as sessions
from parley_gateway.apis.sessions.keeper import SessionKeeper
from parley_gateway.apis.twilio import routes as twilio
from parley_gateway.asyncapi import asyncapi
from parley_gateway.audio.decoders import Decoders
from parley_gateway.bodies import BodyLimits
from parley_gateway.calls import Calls, triton_transport
from parley_gateway.connections import HEALTH, ConnectionLimiter, ConnectionLimits
from parley_gateway.failures import add_error_handlers
from parley_gateway.gateway import Gateway
from parley_gateway.instances import choose_instance
from parley_gateway.logs import AccessLog
from parley_gateway.metrics import Metrics
from parley_gateway.peers import Peers
from parley_gateway.schemas import add_components
from parley_gateway.security.guard import Guard
from parley_gateway.security.origins import add_headers
from parley_gateway.servers import Servers, TritonServer
from parley_gateway.settings import Settings
from parley_gateway.spool import Spool

Api: TypeAlias = Callable[[Gateway], APIRouter]

APIS: tuple[Api, ...] = (
    operations.routes,
    agent.routes,
    sessions.routes,
    realtime.routes,
    openai.routes,
    deepgram.routes,
    voices.routes,
    recorded_calls.routes,
    tokens.routes,
    twilio.routes,
    page.routes,
)


def complete_openapi(app: FastAPI, *, authenticated: bool) -> None:
    """Complete the document at ``/openapi.json``."""
    of_fastapi = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = add_components(of_fastapi())
            _remove_validation_errors(document)
            if authenticated:
                document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
                document["security"] = [{"key": []}]
                for path in HEALTH:
                    document["paths"][path]["get"]["security"] = []
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _remove_validation_errors(document: dict[str, Any]) -> None:
    """Remove the responses of FastAPI's own validation, which no route sends."""
    for path in document["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        document["components"]["schemas"].pop(name, None)


def create_app(
    settings: Settings,
    *,
    servers: Servers | None = None,
    transport: Callable[[TritonServer], Transport] = triton_transport,
    kept: SessionKeeper | None = None,
    apis: tuple[Api, ...] = APIS,
) -> FastAPI:
    """One gateway: ``app.state.gateway`` is what its APIs share.

    Args:
        settings: All of them.
        servers: The servers; None: those of the settings.
        transport: Makes a call's transport to a server.
        kept: Keeps sessions for other gateways; None: as the settings say. Closed with the application.
        apis: What it answers.
    """
    tracing = open_tracing("parley-gateway", os.environ)
    metrics = Metrics()
    servers = servers or Servers(settings.servers)
    spool = Spool(settings.uploads, metrics.uploads)
    guard = Guard(
        settings.security,
        settings.jwt,
        settings.rates,
        public_url=settings.listen.public_url,
        instance=choose_instance(settings.listen.instance, os.environ),
    )
    limits = settings.limits
    calls = Calls(settings.calls, servers, metrics, transport, tracing)
    gateway = Gateway(
        settings=settings,
        instance=guard.instance,
        servers=servers,
        calls=calls,
        descriptions=AgentDescriptions(servers, calls),
        guard=guard,
        metrics=metrics,
        spool=spool,
        decoders=Decoders(settings.decoders, spool, metrics.recordings),
        connections=ConnectionLimiter(
            limits.connections, limits.connections_per_address, guard.addresses, metrics
        ),
        kept=kept or SessionKeeper.of(settings.takeover, metrics),
        peers=Peers(settings.listen, guard, calls, metrics, stall_s=settings.writer.stall_s),
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with servers:
            yield
            await gateway.descriptions.aclose()
            await gateway.calls.aclose()
            await gateway.decoders.aclose()
            await gateway.guard.aclose()
            await gateway.kept.aclose()
            if tracing is not None:
                await asyncio.to_thread(tracing.close)

    app = FastAPI(
        title="Parley gateway",
        version=version("parley"),
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.gateway = gateway
    _protect(app, gateway, gateway.connections)
    for routes in apis:
        app.include_router(routes(gateway))
    complete_openapi(app, authenticated=gateway.guard.authenticated)
    _add_document(app, "/openapi.json", app.openapi)
    _add_document(app, "/asyncapi.json", lambda: asyncapi(app.version))
    return app


def _add_document(app: FastAPI, path: str, make: Callable[[], dict[str, Any]]) -> None:
    """Serve a document that is made once, in a thread: that takes longer than an event loop may stand."""
    encoded = cache(lambda: msgspec.json.encode(make()))

    @app.get(path, include_in_schema=False)
    async def document() -> Response:
        return Response(await asyncio.to_thread(encoded), media_type="application/json")


def create_health_app(gateway: Gateway, connections: ConnectionLimiter) -> FastAPI:
    """What else a gateway answers at ``listen.health_port``."""
    return _create_side_app(gateway, connections, operations.routes(gateway))


def create_metrics_app(gateway: Gateway, connections: ConnectionLimiter) -> FastAPI:
    """What else a gateway answers at ``listen.metrics_port``; the arguments are the same."""
    return _create_side_app(gateway, connections, operations.open_metrics_routes(gateway))


def _create_side_app(gateway: Gateway, connections: ConnectionLimiter, routes: APIRouter) -> FastAPI:
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    _protect(app, gateway, connections)
    app.include_router(routes)
    return app


def _protect(app: FastAPI, gateway: Gateway, connections: ConnectionLimiter) -> None:
    """Put around an application what every request passes through."""
    settings, origins = gateway.settings, gateway.guard.origins
    add_error_handlers(app, gateway.metrics, gateway.peers.pass_on)
    app.add_middleware(BodyLimits, limits=settings.limits)
    app.add_middleware(ConnectionLimits, connections=connections, origins=origins)
    add_headers(app, origins, encrypted=settings.listen.is_encrypted)
    app.add_middleware(AccessLog)
