"""The ASGI application."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI

from parley_client.transport import Transport
from parley_gateway.access_log import AccessLog
from parley_gateway.apis import operations
from parley_gateway.apis.registry import APIS
from parley_gateway.asyncapi import asyncapi
from parley_gateway.audio.decoders import Decoders
from parley_gateway.bodies import BodyLimits
from parley_gateway.calls import Calls, triton_transport
from parley_gateway.connections import HEALTH, ConnectionLimiter, ConnectionLimits
from parley_gateway.failures import add_error_handlers
from parley_gateway.gateway import Gateway
from parley_gateway.metrics import Metrics
from parley_gateway.openapi import complete_openapi
from parley_gateway.security.guard import Guard
from parley_gateway.security.headers import KnownHosts, add_headers
from parley_gateway.servers import Server, Servers
from parley_gateway.settings import Settings
from parley_gateway.spool import Spool


def create_app(
    settings: Settings,
    *,
    guard: Guard | None = None,
    servers: Servers | None = None,
    transport: Callable[[Server], Transport] = triton_transport,
) -> FastAPI:
    """One gateway: ``app.state.gateway`` is what its APIs share.

    Args:
        settings: All of them.
        guard: Who may come in; None: as the settings say.
        servers: The servers; None: those of the settings.
        transport: Makes a call's transport to a server.
    """
    metrics = Metrics()
    servers = servers or Servers(settings.servers)
    spool = Spool(settings.uploads, metrics.uploads)
    guard = guard or Guard(
        settings.security, settings.jwt, settings.rates, public_url=settings.listen.public_url
    )
    limits = settings.limits
    gateway = Gateway(
        settings=settings,
        servers=servers,
        calls=Calls(settings.calls, servers, metrics, transport),
        guard=guard,
        metrics=metrics,
        spool=spool,
        decoders=Decoders(settings.decoders, spool, metrics.recordings),
        connections=ConnectionLimiter(
            limits.connections, limits.connections_per_address, guard.addresses, metrics
        ),
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with servers:
            yield
            await gateway.calls.aclose()
            await gateway.decoders.aclose()
            await gateway.guard.aclose()

    app = FastAPI(
        title="Parley gateway", version=version("parley"), docs_url=None, redoc_url=None, lifespan=lifespan
    )
    app.state.gateway = gateway
    _protect(app, gateway, gateway.connections)
    for routes in APIS:
        app.include_router(routes(gateway))
    complete_openapi(app, authenticated=gateway.guard.authenticated)

    @app.get("/asyncapi.json", include_in_schema=False)
    async def asyncapi_document() -> dict[str, Any]:
        return asyncapi(app.version)

    return app


def create_health_app(gateway: Gateway, connections: ConnectionLimiter) -> FastAPI:
    """What else a gateway answers at ``listen.health_port``.

    Args:
        gateway: The gateway.
        connections: Counts those of this port.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    _protect(app, gateway, connections)
    app.include_router(operations.routes(gateway))
    return app


def _protect(app: FastAPI, gateway: Gateway, connections: ConnectionLimiter) -> None:
    """Put around an application what every request passes through."""
    settings, origins = gateway.settings, gateway.guard.origins
    add_error_handlers(app, gateway.metrics)
    app.add_middleware(BodyLimits, limits=settings.limits)
    app.add_middleware(ConnectionLimits, connections=connections)
    app.add_middleware(KnownHosts, origins=origins, open_paths=HEALTH)
    listen = settings.listen
    encrypted = bool(listen.certificate) or listen.public_url.startswith("https:")
    add_headers(app, origins, encrypted=encrypted)
    app.add_middleware(AccessLog)
