"""Log records as JSON lines, with the ids of the conversation and the request that they belong to.

The ids are context variables: tasks get a copy of those of the task that begins them, so a line has its ids
wherever in the code it is written. A thread has none of its own; it sets them for each request.

``docs/logs.md`` has the fields.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal, TypeAlias, get_args

from parley.errors import ParleyError
from parley.inference import session_of

LogFormat: TypeAlias = Literal["text", "json"]
LOG_FORMATS: tuple[str, ...] = get_args(LogFormat)
FORMAT_VARIABLE = "PARLEY_LOG_FORMAT"
"""Environment variable with the :data:`LogFormat` of a server; empty: ``text``."""
_FACTS = ("turn", "outcome", "e2e_ms")
"""Fields of a line that a log call gives as ``extra``."""
# A line stays below 16 KiB, at which container runtimes split lines, unless most of it is escapes.
MAX_MESSAGE_CHARS = 4_096
MAX_EXCEPTION_CHARS = 8_192


@dataclass(frozen=True, slots=True)
class LogIds:
    """The ids of a log line; empty: there is none."""

    session: str = ""
    request: str = ""
    trace_id: str = ""
    """32 hexadecimal digits."""
    span_id: str = ""
    """16 hexadecimal digits."""


_ids: ContextVar[LogIds] = ContextVar("log_ids", default=LogIds())  # noqa: B039 - it never changes


def current_ids() -> LogIds:
    """The ids of the task or thread under way."""
    return _ids.get()


@contextmanager
def log_ids(*, session: str = "", request: str = "", traceparent: str = "") -> Iterator[None]:
    """Put ids into the log lines of this task or thread, and of tasks begun meanwhile, for a while.

    A ``request`` of a session to a model names the session too. ``traceparent`` is that of a span (W3C Trace
    Context). Empty: as outside.
    """
    before = _ids.get()
    ids = before
    session = session or session_of(request)
    if not before.session.startswith(session):  # the request's id has only the beginning of a long one
        ids = replace(ids, session=session)
    if request:
        ids = replace(ids, request=request)
    if traceparent:
        _, trace_id, span_id, _ = traceparent.split("-")
        ids = replace(ids, trace_id=trace_id, span_id=span_id)
    _ids.set(ids)
    try:
        yield
    finally:
        # A coroutine that is never finished is closed in another context, which keeps its own ids.
        if _ids.get() is ids:
            _ids.set(before)


class JsonFormatter(logging.Formatter):
    """One JSON object in one line of ASCII for each record.

    Args:
        source: what writes the log: the name of a model, or ``gateway``.
    """

    def __init__(self, source: str) -> None:
        super().__init__()
        self._source = source

    def format(self, record: logging.LogRecord) -> str:
        """Format the record with the ids of the context that it is formatted in."""
        at = datetime.fromtimestamp(record.created, UTC)
        ids = _ids.get()
        line = {
            "ts": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "source": self._source,
            "logger": record.name,
            "message": self.clean_message(record.getMessage().rstrip("\n")),
            "session": ids.session,
            "request": ids.request,
            "trace_id": ids.trace_id,
            "span_id": ids.span_id,
            "code": _code(record),
            **{name: value for name in _FACTS if (value := getattr(record, name, None)) is not None},
            "exception": self.clean_exception(self._trace(record)),
        }
        text = json.dumps({name: value for name, value in line.items() if value != "" or name == "message"})
        return text.replace("\x7f", "\\u007f")  # the one control character that JSON leaves as it is

    def clean_message(self, text: str) -> str:
        """The part of a message that is written."""
        return text[:MAX_MESSAGE_CHARS]

    def clean_exception(self, text: str) -> str:
        """The part of a traceback that is written: where it happened is at its beginning, what at its end."""
        if len(text) <= MAX_EXCEPTION_CHARS:
            return text
        half = MAX_EXCEPTION_CHARS // 2
        return f"{text[:half]}\n[{len(text) - 2 * half} characters are left out]\n{text[-half:]}"

    def _trace(self, record: logging.LogRecord) -> str:
        parts = [record.exc_text or ""]
        if record.exc_info:
            parts = [self.formatException(record.exc_info)]
        if record.stack_info:
            parts.append(self.formatStack(record.stack_info))
        return "\n".join(filter(None, parts))


def _code(record: logging.LogRecord) -> str:
    error = record.exc_info[1] if record.exc_info else None
    return error.code if isinstance(error, ParleyError) else str(getattr(record, "code", ""))


def read_log_format(environment: Mapping[str, str]) -> LogFormat:
    """The format that the environment asks for.

    Raises:
        ValueError: it names another one.
    """
    match environment.get(FORMAT_VARIABLE, ""):
        case "" | "text":
            return "text"
        case "json":
            return "json"
        case other:
            raise ValueError(f"{FORMAT_VARIABLE} is {other!r}; it must be {' or '.join(LOG_FORMATS)}")
