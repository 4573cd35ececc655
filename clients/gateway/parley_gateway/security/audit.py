"""The audit log: who did what with which session, and how it ended.

One JSON object per line, by a logger of its own. What was said never is in it, nor keys or tokens.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Protocol, TypeAlias

import msgspec

from parley_gateway.security.redaction import escape, redact_cut

_LOGGER = logging.getLogger("parley.audit")
_MAX_CHARS = 200

Fact: TypeAlias = str | int | float | bool | None


class Named(Protocol):
    """Somebody with an id."""

    @property
    def id(self) -> str:
        """Never a secret."""
        ...


def audit(event: str, principal: Named | None, **facts: Fact) -> None:
    """Write a line.

    Args:
        event: What happened: ``admitted``, ``refused``, ``session_opened``.
        principal: Who; None: nobody who is known.
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
    """Let the lines go to a file, or to standard error if it is empty; whoever calls it closes the handler.

    Raises:
        OSError: the file cannot be opened.
    """
    handler: logging.Handler = logging.FileHandler(Path(file)) if file else logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    _LOGGER.addHandler(handler)
    _LOGGER.setLevel(logging.INFO)
    _LOGGER.propagate = False
    return handler
