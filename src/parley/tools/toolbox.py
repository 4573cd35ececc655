"""All tools of the server: those of the configuration file."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
import msgspec

from parley.errors import ModelLoadingError
from parley.llm.history import estimate_tokens
from parley.protocol import Tool
from parley.tools.addresses import GuardedTransport, make_client
from parley.tools.combined import CombinedTools
from parley.tools.http import HttpTool
from parley.tools.settings import (
    HttpToolSettings,
    McpServerSettings,
    ToolSettings,
    expand_headers,
    read_settings,
)

if TYPE_CHECKING:
    from parley.tools.mcp import McpServer

_FIRST_CONNECTION_S = 6.0
_MAX_TOKENS = 2_000
"""A quarter of the default context, as :func:`parley.llm.history.estimate_tokens` counts."""
_log = logging.getLogger(__name__)


class Toolbox(CombinedTools):
    """:class:`parley.tools.base.ServerTools` from a file; made by :func:`open_toolbox`.

    Args:
        environment: the variables of headers and programs.
        max_tokens: of all tools together in a prompt; those that do not fit are left out.

    Raises:
        ModelLoadingError: a tool cannot be what the file says.
    """

    def __init__(
        self, settings: ToolSettings, environment: Mapping[str, str], max_tokens: int = _MAX_TOKENS
    ) -> None:
        self._max_tokens = max_tokens
        self._left_out: tuple[str, ...] = ()
        self._client = make_client(
            GuardedTransport(settings.allowed_hosts, settings.private_hosts),
            # The caller of a tool keeps its limit.
            timeout=httpx2.Timeout(None),
        )
        own = [self._make_tool(entry, environment) for entry in settings.http]
        self._servers = _make_servers(settings.mcp, settings, environment)
        super().__init__(*own, *self._servers)

    def _make_tool(self, entry: HttpToolSettings, environment: Mapping[str, str]) -> HttpTool:
        where = f"tool {entry.name!r}"
        headers, secrets = expand_headers(entry.headers, environment, where)
        try:
            return HttpTool(entry, headers, secrets, self._client)
        except ValueError as error:
            raise ModelLoadingError(f"{where}: {error}") from error

    async def open(self) -> None:
        """Connect to the MCP servers; unreachable ones are tried again later."""
        for server in self._servers:
            server.start()
        try:
            async with asyncio.timeout(_FIRST_CONNECTION_S):
                for server in self._servers:
                    await server.wait_until_tried()
        except TimeoutError:
            _log.warning("not all MCP servers answered within %g s: the agent starts", _FIRST_CONNECTION_S)

    @property
    def tools(self) -> Sequence[Tool]:
        """Those that can be called now and have room in a prompt."""
        room, fitting, left_out = self._max_tokens, [], []
        for tool in super().tools:
            tokens = estimate_tokens(msgspec.json.encode(tool).decode())
            if tokens > room:
                left_out.append(tool.name)
                continue
            room -= tokens
            fitting.append(tool)
        self._log_left_out(tuple(left_out))
        return fitting

    def _log_left_out(self, names: tuple[str, ...]) -> None:
        if names and names != self._left_out:
            _log.warning("left out: %s: all tools may take %d tokens", ", ".join(names), self._max_tokens)
        self._left_out = names

    async def close(self) -> None:
        """End all connections and programs; safe to call twice."""
        await asyncio.gather(*(server.close() for server in self._servers))
        await self._client.aclose()


async def open_toolbox(path: Path, environment: Mapping[str, str], max_tokens: int = _MAX_TOKENS) -> Toolbox:
    """The tools of a file, connected as far as their servers are there; see :class:`Toolbox`.

    Raises:
        ModelLoadingError: the file cannot be used.
    """
    toolbox = Toolbox(read_settings(path), environment, max_tokens)
    await toolbox.open()
    _log.info("%d of %d tools of %s can be called", len(toolbox.tools), len(toolbox.names), path.name)
    return toolbox


def _make_servers(
    entries: Sequence[McpServerSettings], settings: ToolSettings, environment: Mapping[str, str]
) -> list[McpServer]:
    if not entries:
        return []
    from parley.tools.mcp import McpServer  # noqa: PLC0415 - heavy, and seldom needed

    return [McpServer(entry, settings, environment) for entry in entries]
