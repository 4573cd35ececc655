"""Failures of HTTP requests: one JSON form, or that of the protocol that a route follows."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine
from http import HTTPStatus
from typing import Any, TypeAlias

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response

from parley.errors import InvalidMessageError, ParleyError
from parley.logs import current_ids
from parley_gateway.errors import WrongGatewayError, body_of, headers_of, status_of
from parley_gateway.metrics import Metrics

_log = logging.getLogger("parley.gateway")
CLIENT_CLOSED = 499
"""The status, as nginx has it, of a request whose client left before it was answered."""


PassOn: TypeAlias = Callable[[Request, str], Awaitable[Response | None]]
"""Sends a request to the gateway of this instance; returns its answer, or None where it does not answer."""


def answer(error: ParleyError) -> JSONResponse:
    """The HTTP response for ``error``."""
    return JSONResponse(body_of(error), status_of(error), headers_of(error))


def add_error_handlers(app: FastAPI, metrics: Metrics, pass_on: PassOn) -> None:
    """Answer what routes raise; routes of APIs with a form of their own catch it themselves."""

    async def refuse(request: Request, error: Exception) -> Response:
        assert isinstance(error, ParleyError)
        if isinstance(error, WrongGatewayError):
            answered = await pass_on(request, error.instance)
            if answered is not None:
                return answered
        metrics.refused.labels(error.code).inc()
        if status_of(error) >= 500 and not error.retryable:
            _log.error("a request failed: %s", error.to_log(), extra=error.log_extra())
        return answer(error)

    async def refuse_invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        where = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        metrics.refused.labels(InvalidMessageError.code).inc()
        return answer(InvalidMessageError(where))

    async def refuse_http(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        code = HTTPStatus(error.status_code).phrase.lower().replace(" ", "_")
        body = {"error": {"code": code, "message": str(error.detail), "retryable": False}}
        return JSONResponse(body, error.status_code, error.headers)

    async def fail(_: Request, error: Exception) -> Response:
        _log.error("a request failed", exc_info=error)
        return answer(ParleyError("the gateway failed; its log says why"))

    async def forget(_: Request, error: Exception) -> Response:
        assert isinstance(error, ClientDisconnect)
        return Response(status_code=CLIENT_CLOSED)  # only the log has it

    app.add_exception_handler(ParleyError, refuse)
    app.add_exception_handler(ClientDisconnect, forget)
    app.add_exception_handler(RequestValidationError, refuse_invalid)
    app.add_exception_handler(HTTPException, refuse_http)
    app.add_exception_handler(Exception, fail)


def route_class(answer: Callable[[ParleyError], Response], id_header: str) -> type[APIRoute]:
    """A class of routes that answer failures in the form of another protocol.

    Args:
        answer: makes the response of a failure.
        id_header: carries the request's id, by which its log lines are found, unless the route gives it one.
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
                        _log.warning(
                            "%s failed: %s", request.url.path, error.to_log(), extra=error.log_extra()
                        )
                    response = answer(error)
                response.headers.setdefault(id_header, current_ids().request)
                return response

            return answer_failures

    return Route
