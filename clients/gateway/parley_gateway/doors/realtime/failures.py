"""Failures of HTTP requests, in OpenAI's form."""

from __future__ import annotations

from starlette.responses import JSONResponse

from parley.errors import ParleyError
from parley_gateway.doors.realtime.refusals import Refusal, refusal_of
from parley_gateway.errors import headers_of, status_of


def refused_request(error: ParleyError) -> JSONResponse:
    """The answer that tells of ``error``."""
    return JSONResponse(_body(refusal_of(error)), status_of(error), headers_of(error))


def answer_refusal(refusal: Refusal, status: int = 400) -> JSONResponse:
    """The answer that tells why a request is refused."""
    return JSONResponse(_body(refusal), status)


def _body(refusal: Refusal) -> dict[str, object]:
    body = refusal.body()
    del body["event_id"]
    return {"error": body}
