"""Parley's errors as LiveKit's."""

from __future__ import annotations

from livekit.agents import APIConnectionError, APIError, APIStatusError, APITimeoutError

from parley.errors import (
    ContextTooLongError,
    DeadlineExceededError,
    InvalidInputError,
    ModelUnavailableError,
    NotPermittedError,
    OverloadedError,
    ParleyError,
    TooManySessionsError,
)
from parley_client.errors import ConnectError, StreamLostError

# Parley speaks gRPC: these are what HTTP would say, which is what LiveKit knows. The first that fits.
_STATUS: tuple[tuple[type[ParleyError], int], ...] = (
    (NotPermittedError, 403),
    (ContextTooLongError, 413),
    (InvalidInputError, 400),
    (OverloadedError, 429),
    (TooManySessionsError, 429),
)


def api_error(error: ParleyError, *, request_id: str = "", again: bool = True) -> APIError:
    """What to raise for an error of Parley's; chain it to the original.

    Args:
        error: from the client or the server.
        request_id: of the request that failed.
        again: whether the same request may be repeated; False once some of its answer has been used.
    """
    retryable = error.retryable and again
    message = error.to_wire()
    if isinstance(error, DeadlineExceededError):
        return APITimeoutError(message, retryable=retryable)
    if isinstance(error, (ConnectError, StreamLostError, ModelUnavailableError)):
        return APIConnectionError(message, retryable=retryable)
    body = {"code": error.code}
    for kind, status in _STATUS:
        if isinstance(error, kind):
            return APIStatusError(
                message, status_code=status, request_id=request_id, body=body, retryable=retryable
            )
    return APIError(message, body=body, retryable=retryable)
