"""Server events: how they are named, numbered and sent."""

from __future__ import annotations

import secrets
import string
from typing import Any, Protocol

from starlette.responses import JSONResponse

from parley.errors import InvalidInputError, OverloadedError, ParleyError
from parley.protocol import TurnMetrics
from parley_gateway.errors import RateLimitedError, UnauthorizedError, headers_of, status_of

_LETTERS = string.ascii_letters + string.digits
_LENGTH = 21


class Emit(Protocol):
    """Sends a server event."""

    def __call__(self, kind: str, /, **fields: Any) -> None:
        """``kind`` is the event's type; the event's id is added."""
        ...


def new_id(prefix: str) -> str:
    """An id in OpenAI's form: ``item_`` and 21 letters and digits."""
    return f"{prefix}_" + "".join(secrets.choice(_LETTERS) for _ in range(_LENGTH))


def server_event(kind: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The whole event."""
    return {"type": kind, "event_id": new_id("event"), **fields}


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


class ClientEventError(Exception):
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


def unsupported(what: str, param: str | None = None) -> ClientEventError:
    """Part of OpenAI's protocol that there is nothing for here."""
    return ClientEventError(f"{what} not supported by this server.", code="unsupported", param=param)


def client_event_error(error: ParleyError) -> ClientEventError:
    """The same in OpenAI's words."""
    return ClientEventError(str(error) or error.code, code=error.code, kind=_kind(error))


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


def error_response(error: ParleyError) -> JSONResponse:
    """The answer that tells of ``error``."""
    return JSONResponse(_body(client_event_error(error)), status_of(error), headers_of(error))


def answer_refusal(refusal: ClientEventError, status: int = 400) -> JSONResponse:
    """The answer that tells why a request is refused."""
    return JSONResponse(_body(refusal), status)


def _body(refusal: ClientEventError) -> dict[str, object]:
    body = refusal.body()
    del body["event_id"]
    return {"error": body}


def usage_of(metrics: TurnMetrics | None) -> dict[str, Any] | None:
    """The tokens of a turn; None: they are not known.

    The language model reads and writes text only, so that no token is one of audio.
    """
    if metrics is None:
        return None
    cached = min(metrics.cached_tokens, metrics.prompt_tokens)
    return {
        "total_tokens": metrics.prompt_tokens + metrics.completion_tokens,
        "input_tokens": metrics.prompt_tokens,
        "output_tokens": metrics.completion_tokens,
        "input_token_details": {
            "text_tokens": metrics.prompt_tokens,
            "audio_tokens": 0,
            "image_tokens": 0,
            "cached_tokens": cached,
            "cached_tokens_details": {"text_tokens": cached, "audio_tokens": 0, "image_tokens": 0},
        },
        "output_token_details": {"text_tokens": metrics.completion_tokens, "audio_tokens": 0},
    }
