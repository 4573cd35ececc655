"""Routes that follow another protocol, and so answer failures in its form."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import uuid4

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from parley.errors import ParleyError
from parley_gateway.errors import status_of
from parley_gateway.failures import CLIENT_CLOSED

_log = logging.getLogger("parley.gateway")


def route_class(answer: Callable[[ParleyError], Response], id_header: str) -> type[APIRoute]:
    """A class of routes that follow a protocol.

    Args:
        answer: tells of failures.
        id_header: carries an id of the request, unless the route gives it one.
    """

    class Route(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()

            async def answer_failures(request: Request) -> Response:
                try:
                    response = await handle(request)
                except ClientDisconnect:
                    response = Response(status_code=CLIENT_CLOSED)  # the client has left
                except ParleyError as error:
                    request.app.state.gateway.metrics.refused.labels(error.code).inc()
                    if status_of(error) >= 500:
                        _log.warning("%s failed: %s", request.url.path, error.to_log())
                    response = answer(error)
                response.headers.setdefault(id_header, uuid4().hex)
                return response

            return answer_failures

    return Route
