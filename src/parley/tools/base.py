"""What the agent expects of tools that the server runs itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import msgspec

from parley.protocol import Tool

ReportProgress: TypeAlias = Callable[[Any], None]
"""Takes any JSON value that a running tool says about its progress."""
_MAX_DEPTH = 64
"""Of lists and objects in a result: the encoder has a limit that depends on the caller's stack."""


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
    """The JSON value in a tool's text, else the text: as a string, JSON would be encoded once more.

    A number stays as it is written where its value would be written in another way, such as the price 1.10.
    """
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return text
    if isinstance(value, dict | list):
        return text if is_deep(value) else value
    is_same = isinstance(value, str) or msgspec.json.encode(value).decode() == text.strip()
    return value if is_same else text


def is_deep(value: Any) -> bool:
    """Whether lists and objects of JSON are nested more than 64 levels deep."""
    level = [value]
    for _ in range(_MAX_DEPTH + 1):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return True


class ServerTools(Protocol):
    """Tools that a session has besides its client's: those of the server, or those of its own options."""

    @property
    def names(self) -> Collection[str]:
        """Names that no tool of a client may have, also those of tools that are unavailable now."""
        ...

    @property
    def tools(self) -> Sequence[Tool]:
        """Those that can be called now; of the server, a session offers those at its beginning."""
        ...

    def timeout_s(self, name: str) -> float | None:
        """Seconds after which the caller gives a call of this tool up; None: as long as a client's."""
        ...

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        traceparent: str = "",
        on_progress: ReportProgress | None = None,
    ) -> ToolOutcome:
        """Run a tool with arguments that suit its schema.

        What goes wrong is an outcome too, never an exception. Cancellation ends the call. It has no
        deadline of its own: see :meth:`timeout_s`.

        ``traceparent``: span of the call (W3C Trace Context), passed on to the tool; empty: there is none.
        ``on_progress``: called with what the tool reports while it runs; it never raises.
        """
        ...


class InstantTools(ABC):
    """The part of :class:`ServerTools` that tools share which act on their session alone, and at once."""

    def timeout_s(self, name: str) -> float | None:  # noqa: ARG002 - of the protocol
        """None: no call waits."""
        return None

    async def call(
        self,
        name: str,  # noqa: ARG002 - of the protocol
        arguments: Mapping[str, Any],
        *,
        traceparent: str = "",  # noqa: ARG002
        on_progress: ReportProgress | None = None,  # noqa: ARG002
    ) -> ToolOutcome:
        """See :class:`ServerTools`."""
        return self.act(arguments)

    @abstractmethod
    def act(self, arguments: Mapping[str, Any]) -> ToolOutcome:
        """Do what the call asks for."""
