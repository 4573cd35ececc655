"""Where the log goes: standard error, without secrets and control characters."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote, unquote
from uuid import uuid4

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from parley.logs import LogFormat, log_ids
from parley_gateway.connections import HEALTH
from parley_gateway.errors import GatewaySettingsError
from parley_gateway.security.audit import GatewayJsonFormatter, LogFormatter, redact, write_audit_to
from parley_gateway.tracing import note_caller


@contextmanager
def log_to_stderr(audit_file: str, level: int, form: LogFormat = "text") -> Iterator[None]:
    """Write the gateway's log, and the audit log, for a while.

    Args:
        audit_file: Where the audit log goes; empty: to standard error too.
        level: The least that is logged.
        form: Of the gateway's log; the audit log is JSON in any case.

    Raises:
        GatewaySettingsError: the audit log's file cannot be opened.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(GatewayJsonFormatter() if form == "json" else LogFormatter())
    root = logging.getLogger()
    before = root.level
    try:
        audit = write_audit_to(audit_file)
    except OSError as error:
        raise GatewaySettingsError(f"security.audit_file: {error}") from error
    root.addHandler(handler)
    root.setLevel(level)
    # They log each of their requests, and the gateway asks its servers for their load every two seconds.
    for library in ("httpx", "httpx2"):
        logging.getLogger(library).setLevel(logging.WARNING)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
        logging.getLogger("parley.audit").removeHandler(audit)
        for one in (handler, audit):
            one.close()


_log = logging.getLogger("parley.gateway.access")
_QUIET = (*HEALTH, "/metrics")
_MAX_PATH = 200


class AccessLog:
    """ASGI middleware: logs who asked for what, the status, and how long it took.

    It gives each request and WebSocket the id and the trace that all their log lines have.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        with log_ids(request=str(uuid4()), traceparent=note_caller(scope)):
            await self._pass_on(scope, receive, send)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        began_s = time.perf_counter()
        # Of a WebSocket: 101 once it is accepted, and the code with which the gateway closed it.
        status, code = 0, 0

        async def note(message: Message) -> None:
            nonlocal status, code
            match message["type"]:
                case "http.response.start" | "websocket.http.response.start":
                    status = message["status"]
                case "websocket.accept":
                    status = 101
                case "websocket.close":
                    code = message.get("code", 1000)
            await send(message)

        try:
            await self._app(scope, receive, note)
        finally:
            if scope["path"] not in _QUIET:
                _log.info(
                    "%s %s %s %d %s%.1f ms",
                    (scope.get("client") or ("-",))[0],
                    scope.get("method", "WS"),
                    # As it was sent: percent signs keep line breaks out of the log.
                    _written(scope.get("raw_path", b"").decode("latin-1")),
                    status,
                    f"closed={code} " if code else "",
                    1000 * (time.perf_counter() - began_s),
                )


def _written(path: str) -> str:
    """A path for the log: as it was sent, without a secret that its escapes would hide."""
    plain = unquote(path[: 3 * _MAX_PATH])
    shown = redact(plain)
    return path[:_MAX_PATH] if shown == plain else quote(shown)[:_MAX_PATH]
