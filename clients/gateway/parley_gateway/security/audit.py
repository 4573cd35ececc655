"""The audit log, and the redaction of all logs.

The audit log has one JSON object per line: who did what with which session, and how it ended. Speech and
texts are never in it, nor keys or tokens.
"""

from __future__ import annotations

import logging
import re
import time
from pathlib import Path
from typing import TypeAlias

import msgspec

from parley.logs import MAX_EXCEPTION_CHARS, MAX_MESSAGE_CHARS, JsonFormatter
from parley_gateway.security.principal import Principal

_MAX_MESSAGE = 8_192
_MAX_TRACE = 32_768
# A secret of which this many characters are left is still recognised.
_MARGIN = 16
# Secrets come in heads of requests, which have at most this many bytes.
_LONGEST = 65_536

# No branch can begin again inside of what another attempt has scanned: the time is linear in the text.
_SECRETS = re.compile(
    r"(?P<key>parley_[a-z0-9]+_)[\w-]+"  # the id of an API key may be seen
    r"|(?P<session>sess_)[a-z0-9]{11,}"  # the id resumes the session
    r"|(?P<jwt>(?-i:eyJ))[\w.-]{13,}"
    r"|(?P<url>(?:api_?key|access_token|token|key)=)[^\s&\"']+"
    r"|(?P<header>(?:bearer|token|openai-insecure-api-key\.)[ ,]*)[\w.-]{16,}",
    re.IGNORECASE,
)
# C0, DEL and C1, the separators of lines and paragraphs, marks of direction, and halves of characters: a
# terminal obeys some of them, a reader is deceived by others, and some break a line in two.
_CONTROLS = [
    *range(0x20), *range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F, 0x2028, 0x2029,
    *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0xFEFF, *range(0xD800, 0xE000),
]  # fmt: skip
_ESCAPES = {code: f"\\u{code:04x}" for code in _CONTROLS} | {0x09: "\\t", 0x0A: "\\n", 0x0D: "\\r"}


def redact(text: str) -> str:
    """The text without the secrets in it."""
    return _SECRETS.sub(lambda found: next(part for part in found.groups() if part) + "…", text)


def redact_cut(text: str, limit: int) -> str:
    """The beginning of the text without the secrets in it: at most ``limit`` characters.

    The rest is not read. No part of a secret stays that the cut would have made unrecognisable.
    """
    if len(text) <= limit:
        return redact(text)[:limit]
    return redact(text[: limit + _MARGIN])[:-_MARGIN][:limit]


def escape(text: str) -> str:
    r"""The text with control characters as ``\uXXXX``, as in JSON."""
    return text.translate(_ESCAPES)


class LogFormatter(logging.Formatter):
    """One line for each record, and indented ones for its traceback: without secrets or control characters.

    The record itself stays as it is, for other handlers.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Format the record with its exception, the notes and causes of that, and its stack."""
        message = escape(redact_cut(record.getMessage().rstrip("\n"), _MAX_MESSAGE))
        lines = [f"{self.formatTime(record)} {record.levelname} {record.name}: {message}"]
        if record.exc_info:
            lines += _trace(self.formatException(record.exc_info))
        elif record.exc_text:
            lines += _trace(record.exc_text)
        if record.stack_info:
            lines += _trace(record.stack_info)
        return "\n".join(lines)


class GatewayJsonFormatter(JsonFormatter):
    """One JSON object for each record, without secrets."""

    def __init__(self) -> None:
        super().__init__("gateway")

    def clean_message(self, text: str) -> str:
        """See :class:`parley.logs.JsonFormatter`."""
        return redact_cut(text, MAX_MESSAGE_CHARS)

    def clean_exception(self, text: str) -> str:
        """See :class:`parley.logs.JsonFormatter`."""
        return _redact_middle(text, MAX_EXCEPTION_CHARS)


def _trace(text: str) -> list[str]:
    """Lines that cannot be taken for records: a message inside may hold line breaks."""
    return [f"  {escape(line)}" for line in _redact_middle(text, _MAX_TRACE).split("\n")]


def _redact_middle(text: str, limit: int) -> str:
    """The text without the secrets in it: of a longer one, about ``limit`` characters.

    Where it happened is at the beginning of a traceback, what happened at its end.
    """
    if len(text) <= limit:
        return redact(text)
    half = limit // 2
    left_out = f"[{len(text) - 2 * half} characters are left out]"
    return f"{redact_cut(text, half)}\n{left_out}\n{_redact_end(text, half)}"


def _redact_end(text: str, limit: int) -> str:
    """The end of a longer text without the secrets in it: at most ``limit`` characters.

    Before it only as many characters are read as one secret may have.
    """
    text = text[-(limit + _LONGEST) :]
    cut = len(text) - limit
    for found in _SECRETS.finditer(text):
        if found.end() > cut:
            if found.start() < cut:
                cut = found.end()
            break
    return redact(text[cut:])


_LOGGER = logging.getLogger("parley.audit")
_MAX_CHARS = 200

Fact: TypeAlias = str | int | float | bool | None


def audit(event: str, principal: Principal | None, **facts: Fact) -> None:
    """Write a line.

    Args:
        event: What happened: ``admitted``, ``refused``, ``session_opened``.
        principal: None: unknown.
        **facts: Short facts about it, such as ``session``, ``result`` or ``code``; long ones are cut.
    """
    line: dict[str, Fact] = {
        "at": round(time.time(), 3),
        "event": event,
        "who": principal.id if principal is not None else None,
    }
    line |= {
        name: redact_cut(fact, _MAX_CHARS) if isinstance(fact, str) else fact for name, fact in facts.items()
    }
    _LOGGER.info("%s", _as_json(line))


def _as_json(line: dict[str, Fact]) -> str:
    """One line: JSON leaves some control characters as they are."""
    try:
        return escape(msgspec.json.encode(line).decode())
    except UnicodeEncodeError:  # half a character
        whole = {name: escape(fact) if isinstance(fact, str) else fact for name, fact in line.items()}
        return msgspec.json.encode(whole).decode()


def write_audit_to(file: str) -> logging.Handler:
    """Let the lines go to a file, or to standard error if it is empty; the caller closes the handler.

    Raises:
        OSError: the file cannot be opened.
    """
    handler: logging.Handler = logging.FileHandler(Path(file)) if file else logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    _LOGGER.addHandler(handler)
    _LOGGER.setLevel(logging.INFO)
    _LOGGER.propagate = False
    return handler
