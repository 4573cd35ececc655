"""Tools of MCP servers.

The client library is imported with this module, which takes half a second and 40 MB: import it only where
a server is configured.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import random
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from typing import Any, TextIO, cast

import httpx2
import msgspec
from mcp import Client, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, Implementation, RequestParamsMeta, TextContent
from mcp_types import Tool as McpTool

from parley.protocol import Tool
from parley.tools.addresses import GuardedTransport, make_client
from parley.tools.base import ReportProgress, ToolOutcome, read_value
from parley.tools.schema import TOOL_NAME, SchemaError, argument_schema
from parley.tools.settings import McpServerSettings, McpToolSettings, ToolSettings, expand_headers

_CONNECT_S = 10.0
_LIST_S = 5.0
_CHECK_S = 60.0
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
_STEADY_S = 60.0
"""A connection that lasted this long was a good one: the next pause is the first again."""
_CLOSE_S = 8.0
"""A program gets 2 s to end by itself, 2 s after SIGTERM, and 2 s after SIGKILL."""
_MAX_PAGES = 20
_MAX_TOOLS = 128
_MAX_DESCRIPTION = 1_000
_MAX_TOOL = 8_192
"""Bytes of one tool as it stands in a prompt."""
_MAX_BYTES = 1024 * 1024
_ABOUT_US = Implementation(name="parley", version="1")
_log = logging.getLogger(__name__)
# It logs messages that it cannot read, and these may hold what users said; failures are logged here.
logging.getLogger("mcp").setLevel(logging.CRITICAL + 1)
logging.getLogger("httpx2").setLevel(logging.WARNING)


class McpServer:
    """The connection to one server: made, watched and made again by one task.

    Args:
        settings: which server it is, and which of its tools are offered.
        all_settings: the whole file.
        environment: where headers and programs get their variables from.

    Raises:
        ModelLoadingError: a variable is not set.
    """

    def __init__(
        self, settings: McpServerSettings, all_settings: ToolSettings, environment: Mapping[str, str]
    ) -> None:
        where = f"MCP server {settings.name!r}"
        self._settings = settings
        self._all = all_settings
        self._environment = environment
        self._headers, _ = expand_headers(settings.headers, environment, where)
        self._client: Client | None = None
        self.tools: tuple[Tool, ...] = ()
        """Those that can be called now."""
        self._doubt = asyncio.Event()
        self._tried = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._calls = 0
        self._closing = False
        self._ending = False
        """Whether the library ends the connection: a cancellation would keep it from ending the program."""
        self.names = tuple(f"{settings.prefix}{name}" for name in settings.tools)
        """Names of all its tools, as they are offered."""
        self._background = frozenset(f"{settings.prefix}{name}" for name in settings.background)

    def start(self) -> None:
        """Connect, and stay connected until :meth:`close`."""
        self._task = asyncio.create_task(self._keep_connected(), name=f"MCP server {self._settings.name}")
        self._task.add_done_callback(self._tell_end)

    async def wait_until_tried(self) -> None:
        """Return when the first attempt to connect has succeeded or failed."""
        await self._tried.wait()

    async def close(self) -> None:
        """Disconnect, and end the program if it is one; safe to call twice."""
        if self._task is None or self._task.done():
            return
        if not self._closing and not self._ending:
            self._task.cancel()
        self._closing = True
        _, late = await asyncio.wait({self._task}, timeout=_CLOSE_S)
        if late:
            _log.error("MCP server %s: the connection did not end within %g s", self._settings.name, _CLOSE_S)

    def timeout_s(self, name: str) -> float:
        """The time of one call of this tool."""
        in_background = name in self._background
        return (self._settings.background_timeout_ms if in_background else self._settings.timeout_ms) / 1000

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        traceparent: str = "",
        on_progress: ReportProgress | None = None,
    ) -> ToolOutcome:
        """Run one of its tools; failures are outcomes.

        ``traceparent`` is sent in the call's ``_meta``, unless it is empty.
        """

        async def report(progress: float, total: float | None, message: str | None) -> None:
            if on_progress is not None:
                said = None if message is None else read_value(message)
                on_progress({"progress": progress, "total": total, "message": said})

        client = self._client
        if client is None or all(tool.name != name for tool in self.tools):
            return ToolOutcome.failed("the tool is out of order at the moment")
        self._calls += 1
        try:
            result = await client.call_tool(
                name.removeprefix(self._settings.prefix),
                dict(arguments),
                # It may hold anything, which mypy does not know of.
                meta=cast("RequestParamsMeta", {"traceparent": traceparent}) if traceparent else None,
                progress_callback=None if on_progress is None else report,
            )
        except Exception as error:  # noqa: BLE001 - the library raises whatever its parts do
            # Neither message nor trace: they may hold what the user said.
            _log.warning("MCP server %s: a call failed (%s)", self._settings.name, _kind(error))
            self._doubt.set()
            return ToolOutcome.failed("the tool failed")
        finally:
            self._calls -= 1
        return _outcome(result)

    def _tell_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("MCP server %s: given up (%s)", self._settings.name, _kind(error))

    # --- the connection -------------------------------------------------------------------

    async def _keep_connected(self) -> None:
        loop = asyncio.get_running_loop()
        pause_s = _FIRST_PAUSE_S
        while True:
            connected_at = math.inf
            try:
                async with AsyncExitStack() as stack:
                    async with asyncio.timeout(_CONNECT_S):
                        client = await stack.enter_async_context(self._connection())
                        await self._list_tools(client)
                    self._client = client
                    self._tried.set()
                    connected_at = loop.time()
                    await self._watch(client)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is tried again
                if loop.time() - connected_at >= _STEADY_S:
                    pause_s = _FIRST_PAUSE_S
                _log.warning(
                    "MCP server %s: no connection (%s); next attempt in %g s",
                    self._settings.name,
                    _kind(error),
                    pause_s,
                )
            finally:
                self._client = None
                self.tools = ()
                self._tried.set()
                self._ending = False
            if self._closing:
                return
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _watch(self, client: Client) -> None:
        """Ask for the list again from time to time, and when a call has failed; raises when there is none.

        From time to time only if no call runs: a server that does one thing at a time would not answer.
        """
        while True:
            self._doubt.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_S):
                    await self._doubt.wait()
            if self._calls and not self._doubt.is_set():
                continue
            async with asyncio.timeout(_LIST_S):
                await self._list_tools(client)

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Client]:
        settings = self._settings
        async with AsyncExitStack() as stack:
            if settings.url:
                transport = GuardedTransport(self._all.allowed_hosts, self._all.private_hosts, _MAX_BYTES)
                # The caller limits each call, and a stream of events may be silent for long.
                timeout = httpx2.Timeout(_CONNECT_S, read=None)
                http = await stack.enter_async_context(make_client(transport, self._headers, timeout=timeout))
                streams = streamable_http_client(
                    settings.url, http_client=http, max_sse_event_size=_MAX_BYTES
                )
            else:
                program = StdioServerParameters(
                    command=settings.command[0],
                    args=settings.command[1:],
                    env={name: self._environment.get(name, "") for name in settings.environment},
                )
                streams = stdio_client(program, errlog=self._error_log(stack))
            client = Client(self._noting_the_end(streams), client_info=_ABOUT_US, cache=None)
            yield await stack.enter_async_context(client)

    @asynccontextmanager
    async def _noting_the_end(self, streams: AbstractAsyncContextManager[Any]) -> AsyncIterator[Any]:
        async with streams as made:
            try:
                yield made
            finally:
                self._ending = True

    def _error_log(self, stack: AsyncExitStack) -> TextIO:
        if self._settings.stderr and sys.__stderr__ is not None:
            return sys.__stderr__
        return stack.enter_context(open(os.devnull, "w"))  # noqa: PTH123 - it is no path, and is closed

    async def _list_tools(self, client: Client) -> None:
        wanted = dict.fromkeys(self._settings.tools)
        found: dict[str, Tool] = {}
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            page = await client.list_tools(cursor=cursor)
            for tool in page.tools:
                if (not wanted or tool.name in wanted) and tool.name not in found:
                    found |= self._offer(tool)
            cursor = page.next_cursor
            if cursor is None or len(found) == len(wanted) or len(found) >= _MAX_TOOLS:
                break
        offered = tuple(found.values())
        if offered != self.tools or not self._tried.is_set():
            missing = [name for name in wanted if name not in found]
            _log.info(
                "MCP server %s: %d tools%s",
                self._settings.name,
                len(offered),
                f"; it does not have {', '.join(missing)}" if missing else "",
            )
        self.tools = offered

    def _offer(self, tool: McpTool) -> dict[str, Tool]:
        description = (tool.description or tool.title or "")[:_MAX_DESCRIPTION]
        name = f"{self._settings.prefix}{tool.name}"
        server, own = self._settings, self._settings.options.get(tool.name, McpToolSettings())
        is_announced, is_cancelled = own.announce, own.cancel_on_interruption
        offered = Tool(
            name=name,
            description=description,
            parameters=tool.input_schema,
            mode="background" if name in self._background else "blocking",
            announce=server.announce if is_announced is None else is_announced,
            cancel_on_interruption=server.cancel_on_interruption if is_cancelled is None else is_cancelled,
        )
        if problem := _problem(offered):
            _log.warning("MCP server %s: tool %s is left out: %s", self._settings.name, tool.name, problem)
            return {}
        return {tool.name: offered}


def _problem(tool: Tool) -> str:
    """Why a tool cannot be offered; empty: it can."""
    if not TOOL_NAME.fullmatch(tool.name):
        return "its name has more than 64 characters, or others than letters, digits, - and _"
    try:
        argument_schema(tool.parameters)
    except SchemaError as error:
        return str(error)[:300]
    size = len(msgspec.json.encode(tool))
    return f"description and parameters are longer than {_MAX_TOOL} bytes" if size > _MAX_TOOL else ""


def _outcome(result: CallToolResult) -> ToolOutcome:
    structured = result.structured_content
    if structured is not None:
        # The MCP libraries' own form of a text.
        wraps_text = structured.keys() == {"result"} and isinstance(structured["result"], str)
        output = {"result": read_value(structured["result"])} if wraps_text else structured
        return ToolOutcome(output, result.is_error)
    values = [
        read_value(block.text) if isinstance(block, TextContent) else f"[{block.type} left out]"
        for block in result.content
    ]
    if len(values) == 1:
        return ToolOutcome(values[0], result.is_error)
    texts = [value for value in values if isinstance(value, str)]
    return ToolOutcome("\n".join(texts) if len(texts) == len(values) else values, result.is_error)


def _kind(error: BaseException) -> str:
    """What went wrong, without the words of a message."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return type(error).__name__
