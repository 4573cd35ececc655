"""Health, readiness and metrics of the process."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, Response

from parley.errors import ParleyError, ShuttingDownError
from parley_gateway.errors import NoServerReadyError, body_of, headers_of, status_of
from parley_gateway.failures import answer
from parley_gateway.gateway import Gateway
from parley_gateway.peers import INSTANCE_HEADER


def routes(gateway: Gateway) -> APIRouter:
    """``/healthz``, ``/readyz``, ``/health``, ``/ready`` and ``/metrics``."""
    router = APIRouter(tags=["operations"])

    @router.get("/healthz")
    async def healthz(response: Response) -> dict[str, str]:
        """The process is alive."""
        response.headers[INSTANCE_HEADER] = gateway.instance
        return {"status": "alive"}

    @router.get("/readyz", response_model=None)
    async def readyz(request: Request) -> Response:
        """Whether a call would be accepted: 200, or 503 with the reason; with ``admin`` by model."""
        sees_models = await _sees_details(gateway, request)
        if gateway.calls.draining:
            return answer(ShuttingDownError("this gateway shuts down; connect to another one"))
        details = {"models": _by_server(gateway)} if sees_models else {}
        if not gateway.servers.is_ready:
            reason, message = _why_not_ready(gateway, with_addresses=sees_models)
            refusal = NoServerReadyError(message)
            body = body_of(refusal) | {"reason": reason} | details
            return JSONResponse(body, status_of(refusal), headers_of(refusal))
        ready = sum(server.is_ready for server in gateway.servers.all)
        return JSONResponse({"status": "ready", "servers": ready, "calls": gateway.calls.count, **details})

    @router.get("/ready", response_model=None)
    async def ready() -> Response:
        """Whether every model of a server answers, and calls are accepted: 200, or 503."""
        is_ready = _state(gateway) == "ok"
        return JSONResponse({"ready": is_ready}, 200 if is_ready else 503)

    @router.get("/health", response_model=None)
    async def health(request: Request) -> Response:
        """The state of gateway and servers; with ``admin`` also the GPUs' free memory."""
        state = _state(gateway)
        free = [server.gpu_memory_free for server in gateway.servers.all]
        known = [value for value in free if value is not None]
        return JSONResponse(
            {
                "status": state,
                "triton": "ready" if any(one.is_reachable for one in gateway.servers.all) else "unavailable",
                "active_sessions": gateway.calls.count,
                "gpu_memory_free": sum(known) if known and await _sees_details(gateway, request) else None,
            },
            503 if state in ("unavailable", "draining") else 200,
        )

    @router.get("/metrics", response_model=None)
    async def metrics(request: Request) -> Response:
        """Metrics in Prometheus' format; where keys are required, with the scope ``admin``."""
        if gateway.guard.authenticated:
            await gateway.guard.admit(request, "admin")
        return _page(gateway)

    return router


def open_metrics_routes(gateway: Gateway) -> APIRouter:
    """``/metrics`` for everyone who reaches it."""
    router = APIRouter()

    @router.get("/metrics", response_model=None)
    async def metrics() -> Response:
        """Metrics in Prometheus' format."""
        return _page(gateway)

    return router


def _page(gateway: Gateway) -> Response:
    gateway.metrics.set_servers(gateway.servers)
    return Response(gateway.metrics.render(), media_type=CONTENT_TYPE_LATEST)


def _why_not_ready(gateway: Gateway, *, with_addresses: bool) -> tuple[str, str]:
    """``no_server`` or ``not_ready``, and a message, which may name the addresses of servers.

    A starting Triton does not listen before its models are loaded: until then there is no server.
    """
    servers = gateway.servers.all
    if connected := [server for server in servers if server.is_connected]:
        named = ", ".join(f"{server.address} ({server.problem})" for server in connected)
        return (
            "not_ready",
            f"not ready: {named}" if with_addresses else "a server answers, but it is not ready",
        )
    if not servers:
        sources = ", ".join(gateway.servers.discovery_problems)
        return "no_server", f"no server is found by {sources}" if with_addresses else "no server is found"
    named = ", ".join(server.address for server in servers)
    return "no_server", f"nothing answers at {named}" if with_addresses else "no server answers"


def _state(gateway: Gateway) -> str:
    """``ok``, ``degraded``, ``unavailable`` or ``draining``.

    ``degraded``: calls are accepted, but no server answers with all its models.
    """
    if gateway.calls.draining:
        return "draining"
    if not gateway.servers.is_ready:
        return "unavailable"
    whole = any(server.is_ready and not server.models.problem for server in gateway.servers.all)
    return "ok" if whole else "degraded"


async def _sees_details(gateway: Gateway, request: Request) -> bool:
    """Whether the client may read details: as ``/metrics``, but without an error."""
    guard = gateway.guard
    if guard.authenticated and "Authorization" not in request.headers:
        return False
    try:
        # These paths are served under every host name, their details are not (DNS rebinding).
        guard.origins.check_host(request)
        if guard.authenticated:
            await guard.admit(request, "admin")
    except ParleyError:
        return False
    return True


def _by_server(gateway: Gateway) -> dict[str, object]:
    return {
        server.address: {
            "problem": server.problem or server.models.problem,
            "models": [asdict(result) for result in server.models.results],
        }
        for server in gateway.servers.all
    }
