"""What Parley's errors mean to Pipecat."""

from __future__ import annotations

from pipecat.utils.errors import ErrorCategory

from parley.errors import (
    DeadlineExceededError,
    InferenceError,
    InvalidInputError,
    InvalidMessageError,
    ModelUnavailableError,
    NotPermittedError,
    OverloadedError,
    ParleyError,
    SessionError,
)
from parley_client.errors import ConnectError, StreamLostError, WrongPortError

# The first that fits. Pipecat gives a service no more work after a permanent category, until its settings
# change; so what is wrong with one text or one conversation only is the application's failure.
_CATEGORIES: tuple[tuple[type[ParleyError], ErrorCategory], ...] = (
    (WrongPortError, ErrorCategory.INVALID_REQUEST),
    (ConnectError, ErrorCategory.CONNECTIVITY),
    (StreamLostError, ErrorCategory.CONNECTIVITY),
    (ModelUnavailableError, ErrorCategory.CONNECTIVITY),
    (DeadlineExceededError, ErrorCategory.CONNECTIVITY),
    (OverloadedError, ErrorCategory.RATE_LIMIT),
    (SessionError, ErrorCategory.RATE_LIMIT),
    (NotPermittedError, ErrorCategory.AUTHORIZATION),
    (InvalidMessageError, ErrorCategory.APPLICATION),
    (InvalidInputError, ErrorCategory.INVALID_REQUEST),
)


def category_of(error: BaseException) -> ErrorCategory | None:
    """Why something failed; None: it is no error of Parley's."""
    if not isinstance(error, ParleyError):
        return None
    for kind, category in _CATEGORIES:
        if isinstance(error, kind):
            return category
    if isinstance(error, InferenceError):
        # What will not pass by itself is about the request: a conversation that has become too long.
        return ErrorCategory.SERVER if error.retryable else ErrorCategory.APPLICATION
    return ErrorCategory.UNKNOWN
