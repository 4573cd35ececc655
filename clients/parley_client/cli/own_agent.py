"""Serves the agent of a Python file to a server on this machine, and follows changes of the file."""

from __future__ import annotations

import asyncio
import json
import time
import tomllib
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from parley.errors import ModelUnavailableError, ParleyError, UnknownAgentError
from parley.protocol import Tool, ToolRequest, ToolResponse
from parley.timeouts import is_set_within
from parley_client.agent_program import AgentProgram, LoadedAgent
from parley_client.agent_registration import MARK, Registration, to_toml
from parley_client.cli.output import print_hanging
from parley_client.cli.view import format_tool
from parley_client.connection import connect
from parley_client.errors import ClientError, ToolDefinitionError
from parley_client.options import NO_RETRY
from parley_client.tool_server import ToolServer
from parley_client.tools import ToolTable, run_in_thread

PARALLEL = 32
"""Functions that run at once, for all calls together; each that is not a coroutine has a thread."""
_HOST = "127.0.0.1"
_MARGIN_S = 1.0
"""A function's own deadline is over before the agent's for it, so that its message arrives."""
_LONGEST_S, _LONGEST_BACKGROUND_S = 120.0 - _MARGIN_S, 3_600.0 - _MARGIN_S
SERVED_S = 20.0
"""A server looks at its folder every few seconds, and waits for tools some more."""
INDEXED_S = 1_800.0
"""Longest wait for a server that is reading the agent, and indexes its knowledge."""
TAKEN_S = 5.0
"""Longest wait for the server to read a change."""
_POLL_S = 0.5
_SETTLE_S = 0.2
"""An editor writes a file within this time."""


class OwnAgent:
    """An agent of a Python file; ``check`` raises ``ToolDefinitionError`` for one that cannot be served."""

    def __init__(
        self,
        program: AgentProgram,
        tools: ToolServer,
        place: Registration,
        check: Callable[[LoadedAgent], object],
        console: Console,
    ) -> None:
        self._program = program
        self._tools = tools
        self._place = place
        self._check = check
        self._console = console
        self._revisions = count(1)
        self._began_s = time.perf_counter()

    def publish(self, loaded: LoadedAgent) -> None:
        """Serve what the file defines, which was checked, from now on.

        Raises:
            ToolDefinitionError: the agent has another name; what was served before still is.
            ClientError: the definition cannot be written.
        """
        if loaded.name != self._place.name:
            raise ToolDefinitionError(
                f"{self._program.path}: the name of the agent stays {self._place.name!r} until the command "
                "is started again"
            )
        table = ToolTable(loaded.functions, parallel=PARALLEL, on_answer=self._show)
        # Its number makes the address another one, so that the server reads the list of functions anew.
        fields = definition(loaded, table, f"{self._tools.url}?{next(self._revisions)}")
        self._place.write(fields)
        self._tools.replace(table)
        self._tools.listed.clear()

    async def follow(self) -> None:
        """Publish each change of the file; runs until it is cancelled."""
        while True:
            await asyncio.sleep(_POLL_S)
            if not self._program.has_changed():
                continue
            await asyncio.sleep(_SETTLE_S)
            try:
                loaded = await run_in_thread(self._program.load, "load-agent")
                await run_in_thread(partial(self._check, loaded), "check-agent")
                self.publish(loaded)
            except ParleyError as error:
                self._line(f"[red]{escape(str(error))}[/]\nWhat was served before stays.")
                continue
            is_read = await is_set_within(self._tools.listed, TAKEN_S if loaded.functions else 0.0)
            when = "" if is_read else " when the server has read it"
            self._line(f"{escape(self._program.path.name)} has changed: new calls get the new agent{when}.")

    def _show(self, request: ToolRequest, response: ToolResponse) -> None:
        style = "red" if response.is_error else "dim"
        output = escape(json.dumps(response.output, ensure_ascii=False, default=str))
        self._line(f"[magenta]{format_tool(request)}[/] [{style}]→ {output}[/]")

    def _line(self, text: str) -> None:
        print_hanging(self._console, f"[dim]{time.perf_counter() - self._began_s:7.2f}s[/]  ", text)


def definition(loaded: LoadedAgent, table: ToolTable, url: str) -> dict[str, Any]:
    """The fields of the agent's definition, which were checked, and its functions as tools of an MCP server.

    Raises:
        ToolDefinitionError: a function has a longer time limit than a tool may have.
    """
    names = [tool.name for tool in table.definitions]
    if not names:
        return loaded.fields
    blocking_s, background_s = map(table.longest_timeout_s, ("blocking", "background"))
    if blocking_s > _LONGEST_S or background_s > _LONGEST_BACKGROUND_S:
        raise ToolDefinitionError(
            f"a function may have a timeout_s of {_LONGEST_S:g} s at most, in the background of "
            f"{_LONGEST_BACKGROUND_S:g} s"
        )
    given = loaded.fields.get("tools", {})
    server = {
        "name": loaded.name,
        "url": url,
        "tools": names,
        "timeout_ms": round(1000 * (blocking_s + _MARGIN_S)),
        "background": [tool.name for tool in table.definitions if tool.mode == "background"],
        "background_timeout_ms": round(1000 * (background_s + _MARGIN_S)),
        "options": {tool.name: options for tool in table.definitions if (options := _options(tool))},
    }
    tools = {
        **given,
        "private_hosts": [*given.get("private_hosts", []), _HOST],
        "mcp": [*given.get("mcp", []), server],
    }
    return {**loaded.fields, "tools": tools}


def is_definition_of(loaded: LoadedAgent, file: Path) -> bool:
    """Whether `parley run` has written what an agent's file defines now."""
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    servers = tomllib.loads(text).get("tools", {}).get("mcp", [])
    url = next((one["url"] for one in servers if one["name"] == loaded.name), "")
    return text == MARK + to_toml(definition(loaded, ToolTable(loaded.functions), url))


def _options(tool: Tool) -> dict[str, bool]:
    """What a function has marked that is not the default."""
    cancels = tool.cancel_on_interruption
    cancelled = {} if cancels is None else {"cancel_on_interruption": cancels}
    return cancelled if tool.announce else {"announce": False, **cancelled}


async def wait_until_served(
    server: str, name: str, tools: ToolServer | None, *, indexes: bool = False, **options: Any
) -> None:
    """Return when calls to a server may choose the agent, and the server has read the list of its functions.

    Raises:
        ClientError: it takes longer than :data:`SERVED_S`, if the server ``indexes`` knowledge not counting
            the time in which it reads the agent (:data:`INDEXED_S`), or it refuses calls to it.
    """
    problem, now = "no answer", asyncio.get_running_loop().time
    began = now()
    try:
        async with asyncio.timeout(SERVED_S) as limit:
            while True:
                try:
                    async with connect(
                        server,
                        agent=name,
                        output="text",
                        greeting="",
                        test=True,
                        resume=False,
                        retry=NO_RETRY,
                        **options,
                    ):
                        break
                except ParleyError as error:
                    if not error.retryable and error.code != UnknownAgentError.code:
                        raise ClientError(f"{server} refuses calls to the agent {name}: {error}") from error
                    problem = str(error)
                    if indexes and error.code == ModelUnavailableError.code:
                        limit.reschedule(min(now() + SERVED_S, began + INDEXED_S))
                await asyncio.sleep(_POLL_S)
            if tools is not None:
                problem = "it has not connected to the functions"
                await tools.listed.wait()
    except TimeoutError:
        raise ClientError(
            f"{server} does not serve the agent {name} after {now() - began:.0f} s: {problem}"
        ) from None
