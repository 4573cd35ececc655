"""Errors, bodies, names of models and server-sent events in the formats of OpenAI's REST API."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Any, TypeVar

import msgspec
from fastapi import Request
from starlette.responses import JSONResponse, Response

from parley.engines import registry
from parley.engines.embeddings import EMBEDDINGS
from parley.errors import ContextTooLongError, ModelLoadingError, ModelUnavailableError, ParleyError
from parley.field_errors import describe_field_error
from parley_gateway.errors import GatewayError, UnauthorizedError, headers_of, status_of
from parley_stages.transcription import TRANSCRIBERS

RECOGNIZERS = (*TRANSCRIBERS, *registry.RECOGNIZERS)
LANGUAGE_MODELS = tuple(name for name in registry.CHAT_MODELS if name != registry.REMOTE_CHAT)
SYNTHESIZERS = tuple(registry.SYNTHESIZERS)
MODELS = (*RECOGNIZERS, *LANGUAGE_MODELS, *SYNTHESIZERS, EMBEDDINGS)
MEDIA_TYPE = "text/event-stream"
DONE = b"data: [DONE]\n\n"
# OpenAI's models, in requests of clients that changed only the address; they mean the gateway's model.
_OPENAI_MODEL = re.compile(r"(gpt|chatgpt|whisper|tts|text-embedding|o\d)(-|$)")
# Triton's words for a model that it has not loaded. One that is being loaded, or has failed, is known to it.
_NOT_LOADED = re.compile(r"unknown model: '[^']*' is not found")
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `([^`]+)`")
_MISSING_FIELD = re.compile(r"Object missing required field `([^`]+)`")
_PATH = re.compile(r" - at `\$\.?([^`]*)`$")
BodyT = TypeVar("BodyT")
_CODES: dict[type[ParleyError], str] = {
    UnauthorizedError: "invalid_api_key",
    ContextTooLongError: "context_length_exceeded",
}


class RefusedRequestError(GatewayError):
    """An invalid or unsupported request; ``param`` is the invalid field, ``reason`` OpenAI's code."""

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
    """The error for an unsupported option that would change the meaning of the response."""
    return RefusedRequestError(f"'{param}' {why}", param=param, reason="unsupported_parameter")


def missing(param: str) -> RefusedRequestError:
    """The error for a request without a field that it needs."""
    message = f"Missing required parameter: '{param}'."
    return RefusedRequestError(message, param=param, reason="missing_required_parameter")


def body_of(error: ParleyError) -> dict[str, Any]:
    """The JSON object of an error."""
    param, code = (
        (error.param, error.reason)
        if isinstance(error, RefusedRequestError)
        else (None, _CODES.get(type(error), error.code))
    )
    kind = _type_of(status_of(error))
    return {"error": {"message": str(error) or error.code, "type": kind, "param": param, "code": code}}


def answer(error: ParleyError) -> Response:
    """The HTTP response of an error; OpenAI's clients read its headers before they retry."""
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


async def read_json(request: Request, kind: type[BodyT]) -> BodyT:
    """Read the body of a request; raises RefusedRequestError, which names the invalid field."""
    try:
        return msgspec.json.decode(await request.body(), type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise refusal_of(error, kind) from error


def refusal_of(error: Exception, kind: Any) -> RefusedRequestError:
    """The error for a body of the type ``kind`` that msgspec refuses."""
    text = describe_field_error(error, kind)
    path = _PATH.search(text)
    where = path.group(1) if path else ""
    if unknown := _UNKNOWN_FIELD.match(text):
        param = f"{where}.{unknown.group(1)}".lstrip(".")
        return RefusedRequestError(
            f"Unrecognized request argument supplied: {param}", param=param, reason="unknown_parameter"
        )
    if absent := _MISSING_FIELD.match(text):
        param = f"{where}.{absent.group(1)}".lstrip(".")
        return missing(param)
    return RefusedRequestError(f"The request cannot be read: {text}", param=where or None)


def choose_model(wanted: str, own: Sequence[str], default: str) -> str:
    """The model for a name in a request: one of ``own``, or ``default`` for a model of OpenAI."""
    if wanted in own:
        return wanted
    if wanted not in MODELS and _OPENAI_MODEL.match(wanted):
        return default
    raise no_model(wanted)


@contextmanager
def serving(wanted: str, model: str | None) -> Iterator[None]:
    """Refuse a model that the request names and the server does not serve like one that does not exist.

    A model that is being loaded, or has failed, stays unavailable, which the client may try again.

    Args:
        wanted: the name in the request.
        model: the one that is asked; None: the server's choice.
    """
    try:
        yield
    except (ModelUnavailableError, ModelLoadingError) as error:
        is_served = isinstance(error, ModelUnavailableError) and not _NOT_LOADED.search(str(error))
        if is_served or wanted != model:
            raise
        raise no_model(wanted) from error


def no_model(wanted: str) -> RefusedRequestError:
    """The error for a name of a model that is unknown, or not served."""
    return RefusedRequestError(
        f"The model '{wanted}' does not exist here or cannot do this; GET /v1/models lists what there is",
        param="model",
        reason="model_not_found",
        status=404,
    )


def event(content: Any) -> bytes:
    """One event with the JSON of ``content``."""
    return b"data: " + msgspec.json.encode(content) + b"\n\n"


async def with_failures(
    events: AsyncGenerator[bytes, None],
    tell: Callable[[ParleyError], bytes] = lambda error: event(body_of(error)),
) -> AsyncGenerator[bytes, None]:
    """Send failures after the first event as an event of ``tell``, because the status is sent already."""
    begun = False
    async with aclosing(events):
        try:
            async for one in events:
                begun = True
                yield one
        except ParleyError as error:
            if not begun:
                raise
            yield tell(error)
