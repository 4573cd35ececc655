"""Is the process alive, would it take a call, and what has it counted?"""

from __future__ import annotations

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, Response

from parley.errors import ShuttingDownError
from parley_gateway.errors import NoServerReadyError
from parley_gateway.failures import answer
from parley_gateway.gateway import Gateway


def routes(gateway: Gateway) -> APIRouter:
    """``/healthz``, ``/readyz`` and ``/metrics``."""
    router = APIRouter(tags=["operations"])

    @router.get("/healthz")
    async def healthz() -> dict[str, str]:
        """The process is alive."""
        return {"status": "alive"}

    @router.get("/readyz", response_model=None)
    async def readyz() -> Response:
        """Whether a call would be taken: 200, or 503 with the reason."""
        if gateway.calls.draining:
            return answer(ShuttingDownError("this gateway shuts down; connect to another one"))
        if not gateway.servers.is_ready:
            return answer(NoServerReadyError("no server is ready"))
        ready = sum(server.is_ready for server in gateway.servers.all)
        return JSONResponse({"status": "ready", "servers": ready, "calls": gateway.calls.count})

    @router.get("/metrics", response_model=None)
    async def metrics(request: Request) -> Response:
        """Counters, as Prometheus reads them; where keys are asked for, with the scope ``admin``."""
        if gateway.guard.authenticated:
            await gateway.guard.admit(request, "admin")
        for server in gateway.servers.all:
            gateway.metrics.server_ready.labels(server.address).set(server.is_ready)
            gateway.metrics.server_users.labels(server.address).set(server.users)
        return Response(gateway.metrics.render(), media_type=CONTENT_TYPE_LATEST)

    return router
