"""Server events, their ids, and errors in OpenAI's format."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable
from typing import Any, Protocol

from starlette.responses import JSONResponse

from parley.errors import ParleyError
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
    """An id in OpenAI's format: ``item_`` and 21 letters and digits."""
    return f"{prefix}_" + "".join(secrets.choice(_LETTERS) for _ in range(_LENGTH))


def server_event(kind: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The event with its type and a new id."""
    return {"type": kind, "event_id": new_id("event"), **fields}


def emitter(send: Callable[[dict[str, Any]], None]) -> Emit:
    """The function that makes server events and passes them to ``send``."""

    def emit(kind: str, /, **fields: Any) -> None:
        send(server_event(kind, fields))

    return emit


INVALID = "invalid_request_error"
SERVER = "server_error"
# After these the session continues unchanged, and the client gets no error.
HARMLESS = frozenset(("asr_fallback", "llm_fallback", "tts_fallback", "tool_timeout", "invalid_tool_call"))
# Refusals of a request of the client.
REFUSED = frozenset(
    "invalid_input invalid_message unsupported_voice unsupported_language unknown_agent unknown_tool_call "
    "session_error not_permitted".split()
)
# The refusals that an update of the session can cause.
REFUSED_CHANGES = frozenset(
    "invalid_input invalid_message unsupported_voice unsupported_language unknown_agent not_permitted".split()
)
# The refusals that the truncation of a response can cause.
REFUSED_CORRECTIONS = frozenset(("invalid_input", "invalid_message", "session_error"))


class ClientEventError(Exception):
    """A client's event that is refused with an ``error`` event; the session continues.

    ``code`` is stable, and OpenAI's own where it has one; ``param`` is the path of the invalid field;
    ``kind`` is OpenAI's ``error.type``.
    """

    def __init__(
        self, message: str, *, code: str = "invalid_value", param: str | None = None, kind: str = INVALID
    ) -> None:
        super().__init__(message)
        self.code = code
        self.param = param
        self.kind = kind

    def body(self, event_id: str | None = None) -> dict[str, Any]:
        """OpenAI's error object; ``event_id`` is that of the client's event that caused it."""
        return {
            "type": self.kind,
            "code": self.code,
            "message": str(self),
            "param": self.param,
            "event_id": event_id,
        }


def unsupported(what: str, param: str | None = None) -> ClientEventError:
    """The refusal of a part of OpenAI's protocol that this server does not implement."""
    return ClientEventError(f"{what} not supported by this server.", code="unsupported", param=param)


def client_event_error(error: ParleyError) -> ClientEventError:
    """``error`` in OpenAI's format."""
    return ClientEventError(str(error) or error.code, code=error.code, kind=_kind(error))


def _kind(error: ParleyError) -> str:
    if isinstance(error, UnauthorizedError):
        return "authentication_error"
    if isinstance(error, RateLimitedError):
        return "rate_limit_error"
    return INVALID if status_of(error) < 500 else SERVER


def error_response(error: ParleyError | ClientEventError) -> JSONResponse:
    """The HTTP response for ``error``."""
    if isinstance(error, ParleyError):
        body, status, headers = client_event_error(error).body(), status_of(error), headers_of(error)
    else:
        body, status, headers = error.body(), 400, {}
    del body["event_id"]
    return JSONResponse({"error": body}, status, headers)


def usage_of(metrics: TurnMetrics | None) -> dict[str, Any] | None:
    """The tokens of a turn; None: unknown. The language model has text tokens only."""
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
