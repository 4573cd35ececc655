"""Log records as JSON lines, with the ids of the conversation and the request that they belong to.

The ids are context variables: tasks get a copy of those of the task that begins them, so a line has its ids
wherever in the code it is written. A thread has none of its own; it sets them for each request.

``docs/observability.md`` has the fields.
"""

from __future__ import annotations

import json
import logging
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias, get_args

from parley.errors import ParleyError
from parley.inference import session_of

LogFormat: TypeAlias = Literal["text", "json"]
LOG_FORMATS: tuple[str, ...] = get_args(LogFormat)
FORMAT_VARIABLE = "PARLEY_LOG_FORMAT"
"""Environment variable with the :data:`LogFormat` of a server; empty: ``text``."""
_FACTS = ("turn", "outcome", "e2e_ms")
"""Fields of a line that a log call gives as ``extra``."""
MAX_LINE_BYTES = 4_096
"""Of a line with its line break. Longer writes to a pipe are not atomic (``PIPE_BUF`` of Linux): the lines of
several processes would mix.
"""
MAX_MESSAGE_CHARS = 4_096
MAX_EXCEPTION_CHARS = 4_096
_LEAST_EXCEPTION = 1_024
"""Bytes that a long exception keeps beside a long message."""
_MAX_ID, _MAX_NAME = 512, 128
"""Bytes of each other text, where a line is too long. Together they leave room for the message."""
_LEFT_OUT = "\n[a part is left out]\n"


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
    """One JSON object in one line of ASCII for each record: with a line break at most :data:`MAX_LINE_BYTES`.

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
        text = _encode(line)
        return text if len(text) < MAX_LINE_BYTES else _encode(_shorten(line))

    def clean_message(self, text: str) -> str:
        """The part of a message that is written."""
        return text[:MAX_MESSAGE_CHARS]

    def clean_exception(self, text: str) -> str:
        """The part of a traceback that may be written, of which a line may leave out the middle."""
        if len(text) <= MAX_EXCEPTION_CHARS:
            return text
        half = MAX_EXCEPTION_CHARS // 2
        return text[:half] + text[-half:]

    def _trace(self, record: logging.LogRecord) -> str:
        parts = [record.exc_text or ""]
        if record.exc_info:
            parts = [self.formatException(record.exc_info)]
        if record.stack_info:
            parts.append(self.formatStack(record.stack_info))
        return "\n".join(filter(None, parts))


def _encode(line: Mapping[str, Any]) -> str:
    text = json.dumps({name: value for name, value in line.items() if value != "" or name == "message"})
    return text.replace("\x7f", "\\u007f")  # the one control character that JSON leaves as it is


def _shorten(line: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a line that is short enough: the exception is shortened first, then the message.

    Other texts are cut only where they are longer than any that the project writes.
    """
    kept = {name: _beginning(value, _longest(name)) for name, value in line.items()}
    message, exception = line["message"], line["exception"]
    # An empty exception is no field.
    rest = {**kept, "message": "", "exception": ""}
    named = ', "exception": ""' if exception else ""
    room = MAX_LINE_BYTES - 1 - len(_encode(rest)) - len(named)
    message = _beginning(message, room - min(_size(exception), _LEAST_EXCEPTION))
    exception = _ends(exception, room - _size(message))
    return {**kept, "message": message, "exception": exception}


def _longest(name: str) -> int:
    return _MAX_ID if name in ("session", "request") else _MAX_NAME


def _size(text: str) -> int:
    """The bytes of a text in a line, without its quotation marks."""
    return len(_encode({"message": text})) - len(_encode({"message": ""}))


def _beginning(value: Any, size: int) -> Any:
    """The beginning of a text, at most ``size`` bytes of a line; other values stay as they are."""
    if not isinstance(value, str):
        return value
    lengths = range(1, min(len(value), size) + 1)
    return value[: bisect_right(lengths, size, key=lambda length: _size(value[:length]))]


def _ends(text: str, size: int) -> str:
    """Beginning and end of a text, in at most ``size`` bytes of a line.

    Where an error was raised is at the beginning of its traceback, what was raised at its end.
    """
    if _size(text) <= size:
        return text
    half = max(0, size - _size(_LEFT_OUT)) // 2
    lengths = range(1, min(len(text), half) + 1)
    end = bisect_right(lengths, half, key=lambda length: _size(text[len(text) - length :]))
    return f"{_beginning(text, half)}{_LEFT_OUT}{text[len(text) - end :]}"


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
