"""Errors in Deepgram's form."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from starlette.responses import JSONResponse, Response
from starlette.websockets import WebSocket

from parley.errors import InvalidAudioError, OverloadedError, ParleyError, SessionIdleError, ShuttingDownError
from parley_gateway.closing import GOING_AWAY, Close, close_of
from parley_gateway.errors import GatewayError, UnauthorizedError, headers_of, status_of
from parley_gateway.gateway import Gateway

_CODES = {
    401: "INVALID_AUTH",
    403: "INSUFFICIENT_PERMISSIONS",
    413: "PAYLOAD_ERROR",
    429: "TOO_MANY_REQUESTS",
}


def answer(error: ParleyError) -> Response:
    """The HTTP answer that tells of ``error``."""
    status = status_of(error)
    request_id = str(uuid4())
    code = _CODES.get(status, "Bad Request" if status < 500 else "INTERNAL_SERVER_ERROR")
    message = "Invalid credentials." if isinstance(error, UnauthorizedError) else str(error) or error.code
    said = message.encode("ascii", "replace").decode().replace("\n", " ")
    headers = headers_of(error) | {"dg-request-id": request_id, "dg-error": said}
    return JSONResponse({"err_code": code, "err_msg": message, "request_id": request_id}, status, headers)


async def refuse(websocket: WebSocket, error: ParleyError, gateway: Gateway) -> None:
    """Answer a WebSocket's request, before it is accepted."""
    gateway.metrics.refused.labels(error.code).inc()
    await websocket.send_denial_response(answer(error))


def close_for(error: ParleyError) -> Close:
    """How a WebSocket that failed with ``error`` is closed: the reason is Deepgram's where it has one."""
    if isinstance(error, SessionIdleError):
        return Close(1011, "NET-0001")
    if isinstance(error, InvalidAudioError):
        return Close(1008, "DATA-0000")
    if isinstance(error, GatewayError | OverloadedError | ShuttingDownError):
        return close_of(error)
    return close_of(error) if status_of(error) < 500 else Close(1011, "NET-0000")


def message_of(error: ParleyError) -> dict[str, Any]:
    """The last message of a stream that failed."""
    close = GOING_AWAY if isinstance(error, ShuttingDownError) else close_for(error)
    text = str(error) or error.code
    return {
        "type": "Error",
        "variant": close.reason,
        "code": error.code,
        "description": text,
        "message": text,
    }
