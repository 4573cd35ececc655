"""Tools of several owners as one set: an agent's and the server's own, or those of a session's options."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from parley.protocol import Tool
from parley.tools.base import ReportProgress, ServerTools, ToolOutcome


class CombinedTools:
    """:class:`parley.tools.base.ServerTools` of several, whose names differ."""

    def __init__(self, *parts: ServerTools, without: Collection[str] = ()) -> None:
        self._by_name = {name: part for part in parts for name in part.names if name not in without}
        self._parts = parts

    @property
    def names(self) -> Collection[str]:
        """Names of all."""
        return self._by_name.keys()

    @property
    def tools(self) -> Sequence[Tool]:
        """Those of each part that can be called now."""
        return [tool for part in self._parts for tool in part.tools if tool.name in self._by_name]

    def timeout_s(self, name: str) -> float | None:
        """Seconds after which the caller gives a call up."""
        part = self._by_name.get(name)
        return None if part is None else part.timeout_s(name)

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        traceparent: str = "",
        on_progress: ReportProgress | None = None,
    ) -> ToolOutcome:
        """Run a tool."""
        if (part := self._by_name.get(name)) is None:
            return ToolOutcome.failed(f"there is no tool {name}")
        return await part.call(name, arguments, traceparent=traceparent, on_progress=on_progress)
