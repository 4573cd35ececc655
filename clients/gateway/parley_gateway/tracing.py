"""The trace of a caller: the header ``traceparent`` of the request with which a call is opened.

Apart because calls and the middleware both need it.
"""

from __future__ import annotations

import re
from contextvars import ContextVar

import msgspec
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from parley import protocol
from parley.logs import log_ids

_FORM = re.compile(protocol.TRACEPARENT)
_traceparent: ContextVar[str] = ContextVar("traceparent", default="")


class TraceContext:
    """ASGI middleware: keeps the request's ``traceparent``. As W3C demands, an invalid one is ignored.

    Args:
        app: What is inside.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] in ("http", "websocket"):
            value = Headers(scope=scope).get("traceparent", "")
            value = value if _FORM.match(value) else ""
            _traceparent.set(value)
            with log_ids(traceparent=value):
                await self._app(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def with_trace(start: protocol.Start) -> protocol.Start:
    """The options of a call, below the trace of the request under way unless they name another one."""
    if start.traceparent or not _traceparent.get():
        return start
    return msgspec.structs.replace(start, traceparent=_traceparent.get())
