"""Routes that follow another protocol, and so answer failures in its form."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from parley.errors import ParleyError
from parley_gateway.errors import status_of

_log = logging.getLogger("parley.gateway")
_CLIENT_CLOSED = 499


def route_class(answer: Callable[[ParleyError], Response]) -> type[APIRoute]:
    """A class of routes for which ``answer`` tells of failures."""

    class Route(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()

            async def answer_failures(request: Request) -> Response:
                try:
                    return await handle(request)
                except ClientDisconnect:
                    return Response(status_code=_CLIENT_CLOSED)  # nobody reads it
                except ParleyError as error:
                    request.app.state.gateway.metrics.refused.labels(error.code).inc()
                    if status_of(error) >= 500:
                        _log.warning("%s failed: %s", request.url.path, error.to_log())
                    return answer(error)

            return answer_failures

    return Route
