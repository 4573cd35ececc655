"""Errors in the form of OpenAI's interface, for REST and for server-sent events."""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse, Response

from parley.errors import ContextTooLongError, ParleyError
from parley_gateway.errors import GatewayError, UnauthorizedError, headers_of, status_of

_CODES: dict[type[ParleyError], str] = {
    UnauthorizedError: "invalid_api_key",
    ContextTooLongError: "context_length_exceeded",
}


class RefusedRequestError(GatewayError):
    """A request that cannot be fulfilled as it is.

    Args:
        message: for the client's developer.
        param: the field that is at fault.
        reason: OpenAI's code.
        status: of the answer.
    """

    code = "invalid_request"
    status = 400

    def __init__(
        self, message: str, *, param: str | None = None, reason: str = "invalid_value", status: int = 400
    ) -> None:
        super().__init__(message)
        self.param = param
        self.reason = reason
        self.status = status  # type: ignore[misc]


def unsupported(param: str, why: str = "is not supported") -> RefusedRequestError:
    """For a wish that would change what the answer means, and cannot be fulfilled."""
    return RefusedRequestError(f"'{param}' {why}", param=param, reason="unsupported_parameter")


def body_of(error: ParleyError) -> dict[str, Any]:
    """``{"error": ...}``."""
    param, code = (
        (error.param, error.reason)
        if isinstance(error, RefusedRequestError)
        else (None, _CODES.get(type(error), error.code))
    )
    kind = _type_of(status_of(error))
    return {"error": {"message": str(error) or error.code, "type": kind, "param": param, "code": code}}


def answer(error: ParleyError) -> Response:
    """The HTTP answer; OpenAI's clients look at its headers before they try again."""
    headers = headers_of(error) | {"x-should-retry": "true" if error.retryable else "false"}
    return JSONResponse(body_of(error), status_of(error), headers)


def _type_of(status: int) -> str:
    if status == 401:
        return "authentication_error"
    if status == 403:
        return "permission_error"
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"
