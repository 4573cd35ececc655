"""What is answered to a client's event that cannot be obeyed."""

from __future__ import annotations

from typing import Any

from parley.errors import InvalidInputError, OverloadedError, ParleyError
from parley_gateway.errors import RateLimitedError, UnauthorizedError, status_of

INVALID = "invalid_request_error"
SERVER = "server_error"
# The agent goes on as if nothing had happened, and so does the client.
HARMLESS = frozenset(("asr_fallback", "tts_fallback", "tool_timeout", "invalid_tool_call"))
# The agent refuses something that the client wanted.
REFUSED = frozenset(
    "invalid_input invalid_message unsupported_voice unsupported_language unknown_tool_call session_error "
    "not_permitted".split()
)
# These a change of the session can cause; the others are about something else that was wanted meanwhile.
REFUSED_CHANGES = frozenset(("invalid_input", "invalid_message", "unsupported_voice", "unsupported_language"))
# And these the correction of an answer.
REFUSED_CORRECTIONS = frozenset(("invalid_input", "invalid_message", "session_error"))


class Refusal(Exception):  # noqa: N818 - it is an answer, not a failure
    """A client's event cannot be obeyed; it is told why, and the session goes on.

    Args:
        message: For the client's developer.
        code: Stable; OpenAI's own where it has one.
        param: The field that is at fault, as a path; None: no single one.
        kind: OpenAI's ``error.type``.
    """

    def __init__(
        self, message: str, *, code: str = "invalid_value", param: str | None = None, kind: str = INVALID
    ) -> None:
        super().__init__(message)
        self.code = code
        self.param = param
        self.kind = kind

    def body(self, event_id: str | None = None) -> dict[str, Any]:
        """OpenAI's error object.

        Args:
            event_id: Of the client's event that caused it.
        """
        return {
            "type": self.kind,
            "code": self.code,
            "message": str(self),
            "param": self.param,
            "event_id": event_id,
        }


def unsupported(what: str, param: str | None = None) -> Refusal:
    """Part of OpenAI's protocol that there is nothing for here."""
    return Refusal(f"{what} not supported by this server.", code="unsupported", param=param)


def refusal_of(error: ParleyError) -> Refusal:
    """The same in OpenAI's words."""
    return Refusal(str(error) or error.code, code=error.code, kind=_kind(error))


def _kind(error: ParleyError) -> str:
    if isinstance(error, UnauthorizedError):
        return "authentication_error"
    if isinstance(error, RateLimitedError):
        return "rate_limit_error"
    if isinstance(error, InvalidInputError) or (
        status_of(error) < 500 and not isinstance(error, OverloadedError)
    ):
        return INVALID
    return SERVER
