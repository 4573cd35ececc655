"""Serves functions by MCP (streamable HTTP), for a Parley server on the same machine.

It needs the package ``mcp``, which comes with the server and not with the client.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import count
from typing import Any

import msgspec
import uvicorn
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, TextContent
from mcp_types import Tool as McpTool

from parley.protocol import ToolRequest, ToolResponse
from parley_client.errors import ClientError
from parley_client.tools import ToolTable

_TICK_S = 0.02
_CONNECTIONS = 256
_PROGRESS_S = 1.0
"""Time that reports have to be sent before the result."""
_STOP_S = 2
"""Time that requests have to end; uvicorn takes whole seconds."""
_MAX_SESSIONS = 64
"""One for each instance of ``voice_agent`` and each definition that calls still use."""
# They log messages, and these may hold what users said.
logging.getLogger("mcp").setLevel(logging.CRITICAL + 1)
logging.getLogger("uvicorn").setLevel(logging.CRITICAL)


class _Uvicorn(uvicorn.Server):
    """Leaves signals to the caller."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class ToolServer:
    """A table of tools behind a URL that other users of the machine cannot guess.

    The table may be replaced at any time: a call that has begun ends with the function that it began with.
    """

    def __init__(self) -> None:
        self._table = ToolTable()
        self._path = f"/{secrets.token_urlsafe(24)}"
        self._socket: socket.socket | None = None
        self._numbers = count(1)
        self.listed = asyncio.Event()
        """Set when a client has asked for the list of tools; the owner may clear it."""

    @property
    def url(self) -> str:
        """Where it listens, with the secret; only while it serves."""
        assert self._socket is not None, "it serves"
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}{self._path}"

    def replace(self, table: ToolTable) -> None:
        """Serve these tools from now on."""
        self._table = table

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Listen on a free port of 127.0.0.1.

        Raises:
            ClientError: it cannot start.
        """
        app = Server("parley run", on_list_tools=self._on_list_tools, on_call_tool=self._on_call_tool)
        config = uvicorn.Config(
            app.streamable_http_app(streamable_http_path=self._path, max_sessions=_MAX_SESSIONS),
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=_CONNECTIONS,
            timeout_graceful_shutdown=_STOP_S,
        )
        server = _Uvicorn(config)
        try:
            self._socket = socket.create_server(("127.0.0.1", 0))
        except OSError as error:
            raise ClientError(f"no port of 127.0.0.1 can be listened on: {error.strerror}") from error
        task = asyncio.create_task(server.serve([self._socket]), name="tool-server")
        try:
            # uvicorn has no callback for its start.
            while not server.started and not task.done():  # noqa: ASYNC110
                await asyncio.sleep(_TICK_S)
            if task.done():
                raise ClientError("the server of the functions cannot start") from task.exception()
            yield
        finally:
            server.should_exit = True
            await asyncio.wait({task}, timeout=2 * _STOP_S)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            self._socket.close()

    async def _on_list_tools(self, _context: Any, _params: Any) -> ListToolsResult:
        self.listed.set()
        return ListToolsResult(
            tools=[
                McpTool(name=one.name, description=one.description, input_schema=one.parameters)
                for one in self._table.definitions
            ]
        )

    async def _on_call_tool(
        self, context: ServerRequestContext[Any], params: CallToolRequestParams
    ) -> CallToolResult:
        request = ToolRequest(
            turn=0, call_id=str(next(self._numbers)), name=params.name, arguments=params.arguments or {}
        )
        reports: asyncio.Queue[ToolResponse | None] = asyncio.Queue()
        sending = asyncio.create_task(_send_progress(context, reports), name=f"progress of {params.name}")
        try:
            response = await self._table.answer(request, reports.put_nowait)
            reports.put_nowait(None)
            await asyncio.wait({sending}, timeout=_PROGRESS_S)
        finally:
            sending.cancel()
        text = _text_of(response.output)
        return CallToolResult(content=[TextContent(text=text)], is_error=response.is_error)


async def _send_progress(
    context: ServerRequestContext[Any], reports: asyncio.Queue[ToolResponse | None]
) -> None:
    """Send what a function reports as notifications of progress, up to None."""
    with suppress(Exception):  # the result counts, and the library raises whatever its parts do
        for number in count(1):
            if (report := await reports.get()) is None:
                return
            await context.session.report_progress(number, message=_text_of(report.output))


def _text_of(output: Any) -> str:
    return output if isinstance(output, str) else msgspec.json.encode(output).decode()
