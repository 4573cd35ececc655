"""Tools of the server in whose place those of a client are run: an agent is tested without its services."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from parley.agent.defined_agents import AgentChoice
from parley.errors import InvalidMessageError
from parley.names import suggest_name
from parley.tools.combined import CombinedTools


def replace_tools(choice: AgentChoice) -> AgentChoice:
    """A session whose client runs its own tools in place of the server's of the same names.

    A tool without a description gets that and the parameters of the server's.

    Raises:
        InvalidMessageError: the server has no such tool, or cannot say now what it is.
    """
    own = choice.engines.server_tools
    names = frozenset(own.names) if own is not None else frozenset()
    known = {tool.name: tool for tool in own.tools} if own is not None else {}
    for tool in choice.start.tools:
        if not tool.description and tool.name not in known:
            near = "" if tool.name in names else suggest_name(tool.name, names)
            raise InvalidMessageError(
                f"tool {tool.name!r} needs a description: the server has no such tool, or not now{near}"
            )
    tools = [tool if tool.description else known[tool.name] for tool in choice.start.tools]
    replaced = names & {tool.name for tool in tools}
    if own is None or not replaced:
        return choice
    rest = CombinedTools(own, without=replaced)
    start = msgspec.structs.replace(choice.start, tools=tools)
    return replace(choice, start=start, engines=replace(choice.engines, server_tools=rest))
