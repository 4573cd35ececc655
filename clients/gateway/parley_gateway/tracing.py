"""The trace of a caller: the header ``traceparent`` of a request, or of the one that opens a WebSocket."""

from __future__ import annotations

import re
from contextvars import ContextVar
from typing import TypeVar

import msgspec
from starlette.datastructures import Headers
from starlette.types import Scope

from parley import protocol
from parley.asr.messages import AsrOptions, TranscribeRequest

_FORM = re.compile(protocol.TRACEPARENT)
MessageT = TypeVar("MessageT", protocol.Start, AsrOptions, TranscribeRequest)
_traceparent: ContextVar[str] = ContextVar("traceparent", default="")


def note_caller(scope: Scope) -> str:
    """Keep and return the ``traceparent`` of a request; as W3C demands, an invalid one is ignored."""
    value = Headers(scope=scope).get("traceparent", "")
    value = value if _FORM.match(value) else ""
    _traceparent.set(value)
    return value


def with_trace(message: MessageT) -> MessageT:
    """A message, below the trace of the request under way unless it names another one."""
    if message.traceparent or not _traceparent.get():
        return message
    return msgspec.structs.replace(message, traceparent=_traceparent.get())


def caller_trace() -> str:
    """The ``traceparent`` of the request under way; empty: it has none."""
    return _traceparent.get()
