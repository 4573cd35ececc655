"""What the agent expects of tools that the server runs itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from parley.protocol import Tool


@dataclass(frozen=True)
class ToolOutcome:
    """What a tool returned."""

    output: Any
    """Any JSON value."""
    is_error: bool = False

    @classmethod
    def failed(cls, reason: str) -> ToolOutcome:
        """A failure, as the language model gets it."""
        return cls({"error": reason}, is_error=True)


def read_value(text: str) -> Any:
    """The JSON value in a tool's text, else the text: as a string, JSON would be encoded once more."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return text


class ServerTools(Protocol):
    """Tools that a session has besides its client's: those of the server, or those of its own options."""

    @property
    def names(self) -> Collection[str]:
        """Names that no tool of a client may have, also those of tools that are unavailable now."""
        ...

    @property
    def tools(self) -> Sequence[Tool]:
        """Those that can be called now; a session offers what there is when it begins."""
        ...

    def timeout_s(self, name: str) -> float | None:
        """Seconds after which the caller gives a call of this tool up; None: as long as a client's."""
        ...

    async def call(self, name: str, arguments: Mapping[str, Any], *, traceparent: str = "") -> ToolOutcome:
        """Run a tool with arguments that suit its schema.

        What goes wrong is an outcome too, never an exception. Cancellation ends the call. It has no
        deadline of its own: see :meth:`timeout_s`.

        ``traceparent``: span of the call (W3C Trace Context), passed on to the tool; empty: there is none.
        """
        ...

    async def close(self) -> None:
        """End what runs, and close all connections; safe to call twice."""
        ...
