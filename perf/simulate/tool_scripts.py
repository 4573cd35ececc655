"""Tools that behave as a scenario says."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from parley_client.demo_tools import DEMO_TOOLS
from parley_client.tools import ToolOptions, ToolTable
from simulate.errors import ScenarioError

_DEMO = {tool.name: tool for tool in ToolTable(DEMO_TOOLS).definitions}
_OUTPUTS: dict[str, Any] = {
    "get_weather": {"temperature": 8, "sky": "foggy"},
    "get_time": {"time": "15:52"},
    "set_timer": {"ok": True},
}
DEMO_NAMES = tuple(_DEMO)
_TIMEOUT_S = 120.0


class ToolScript(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool, and what becomes of every call of it."""

    name: str
    description: str = ""
    """Empty: that of the client's sample tool of this name."""
    parameters: dict[str, Any] | None = None
    """JSON schema; None: that of the sample tool."""
    output: Any = None
    """None: the sample's."""
    error: str | None = None
    """The call fails with this."""
    delay_ms: int = 0

    @classmethod
    def demo(cls, name: str) -> ToolScript:
        """A sample tool, with an answer that never changes.

        Raises:
            ScenarioError: there is none of this name.
        """
        if name not in _DEMO:
            raise ScenarioError(f"no tool {name!r}: give it a [[tool]], or take one of {', '.join(_DEMO)}")
        return cls(name=name)

    def options(self) -> ToolOptions:
        """What the language model is told.

        Raises:
            ScenarioError: it has to be told more.
        """
        sample = _DEMO.get(self.name)
        description = self.description or (sample.description if sample else "")
        parameters = self.parameters or (sample.parameters if sample else None)
        if not description or parameters is None:
            raise ScenarioError(f"tool {self.name!r} needs a description and parameters")
        return ToolOptions(self.name, description, parameters, _TIMEOUT_S)

    async def __call__(self, **_arguments: Any) -> Any:
        """Behave."""
        await asyncio.sleep(self.delay_ms / 1000)
        if self.error is not None:
            raise RuntimeError(self.error)
        return _OUTPUTS.get(self.name) if self.output is None else self.output


def make_table(scripts: tuple[ToolScript, ...]) -> ToolTable:
    """The tools of one call."""
    table = ToolTable()
    for script in scripts:
        # The table looks at what it is given; a bound method says by itself that it is asynchronous.
        table.add(script.__call__, script.options())
    return table
