"""What can go wrong in the gateway, beside the errors of the server and of the client library.

Every other :class:`~parley.errors.ParleyError` has its HTTP status by :func:`status_of`.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

from parley import errors
from parley.errors import ParleyError
from parley_client.errors import (
    CallEndedError,
    CallLostError,
    ConnectError,
    SlowConsumerError,
    StreamLostError,
)

# How long a client should wait before it tries again, where nothing better is known (seconds).
_RETRY_AFTER_S = 2.0


class GatewayError(ParleyError):
    """Base of the gateway's own errors."""

    code: ClassVar[str] = "gateway_error"
    status: ClassVar[int] = 500


class UnauthorizedError(GatewayError):
    """No credentials came, or they are not valid (any more)."""

    code = "unauthorized"
    status = 401


class CredentialsRevokedError(GatewayError):
    """What a connection was opened with, or was made from, is no longer accepted: the connection ends."""

    code = "credentials_revoked"
    status = 401


class CredentialsExpiredError(GatewayError):
    """What a connection was opened with, or was made from, has expired: the connection ends."""

    code = "credentials_expired"
    status = 401


class ForbiddenError(GatewayError):
    """The credentials do not reach this far, or the page's origin is not allowed."""

    code = "forbidden"
    status = 403


class NotFoundError(GatewayError):
    """The resource does not exist, or belongs to another key."""

    code = "not_found"
    status = 404


class WrongGatewayError(GatewayError):
    """The id was made by another gateway, which alone knows what it stands for."""

    code = "wrong_gateway"
    status = 404

    def __init__(self, message: str, instance: str) -> None:
        super().__init__(message)
        self.instance = instance
        """The name of the other one."""


class BodyTooSlowError(GatewayError):
    """A request's body did not come in time."""

    code = "body_too_slow"
    status = 408


class SessionInUseError(GatewayError):
    """Another connection already carries this session."""

    code = "session_in_use"
    status = 409


class SessionExpiredError(GatewayError):
    """The session was not connected in time, or is over."""

    code = "session_expired"
    status = 410


class MessageTooLargeError(GatewayError):
    """A message, or a body, is larger than the gateway takes."""

    code = "message_too_large"
    status = 413


class RateLimitedError(GatewayError):
    """Too many requests or messages in too short a time."""

    code = "rate_limited"
    status = 429
    retryable = True


class TooManyCallsError(GatewayError):
    """This process, or this key, holds as many calls as it may."""

    code = "too_many_calls"
    status = 429
    retryable = True


class TooManyConnectionsError(GatewayError):
    """The client's address has as many connections as it may have."""

    code = "too_many_connections"
    status = 429
    retryable = True


class TargetTooLongError(GatewayError):
    """The line of a request does not end within what the gateway takes."""

    code = "target_too_long"
    status = 414


class HeadTooLargeError(GatewayError):
    """The head of a request does not end within what the gateway takes."""

    code = "head_too_large"
    status = 431


class RangeNotSatisfiableError(GatewayError):
    """The file ends before the range that is asked for."""

    code = "range_not_satisfiable"
    status = 416


class CallsUnavailableError(GatewayError):
    """The folder of recorded calls cannot be read, or not be written."""

    code = "calls_unavailable"
    status = 503
    retryable = True


class NoServerReadyError(GatewayError):
    """None of the Triton servers is ready to take a call."""

    code = "no_server_ready"
    status = 503
    retryable = True


class UploadsFullError(GatewayError):
    """The spool has no room for one more recording."""

    code = "uploads_full"
    status = 503
    retryable = True


class DecodersBusyError(GatewayError):
    """No decoder became free in time, or it could not do its work for want of one."""

    code = "decoders_busy"
    status = 503
    retryable = True


class GatewaySettingsError(GatewayError):
    """The settings cannot be used; the message says which and why."""

    code = "settings"


# The first class that an error belongs to counts.
_STATUS: tuple[tuple[type[ParleyError], int], ...] = (
    (errors.SessionNotFoundError, 404),
    (errors.UnknownAgentError, 404),
    (errors.CallNotFoundError, 404),
    (errors.UnknownToolCallError, 404),
    (errors.NotInProfileError, 404),
    (errors.NotPermittedError, 403),
    (errors.SessionExistsError, 409),
    (errors.VoiceExistsError, 409),
    (errors.TooManyVoicesError, 409),
    (errors.InvalidInputError, 400),
    (errors.ContextTooLongError, 400),
    (errors.TooManySessionsError, 429),
    (errors.ShuttingDownError, 503),
    (errors.ModelUnavailableError, 503),
    (errors.ModelLoadingError, 503),
    (errors.OverloadedError, 503),
    (ConnectError, 503),
    (errors.DeadlineExceededError, 504),
    (errors.ToolTimeoutError, 504),
    (errors.SessionIdleError, 408),
    (CallEndedError, 410),
    (SlowConsumerError, 408),
    (CallLostError, 502),
    (StreamLostError, 502),
    (errors.InferenceError, 502),
    (errors.VoiceStoreError, 502),
)


def status_of(error: ParleyError) -> int:
    """The HTTP status of ``error``."""
    if isinstance(error, GatewayError):
        return error.status
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def retry_after_of(error: ParleyError) -> int | None:
    """Whole seconds for ``Retry-After``; None: the header is not sent."""
    known = error.retry_after_s
    if known is None and error.retryable and status_of(error) in (429, 503):
        known = _RETRY_AFTER_S
    return None if known is None else max(1, math.ceil(known))


def headers_of(error: ParleyError) -> dict[str, str]:
    """The headers that belong to the answer."""
    headers = {}
    if (wait := retry_after_of(error)) is not None:
        headers["Retry-After"] = str(wait)
    if status_of(error) == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return headers


def body_of(error: ParleyError) -> dict[str, Any]:
    """The JSON form of an error in every answer that follows no other protocol's form."""
    return {"error": {"code": error.code, "message": str(error), "retryable": error.retryable}}
