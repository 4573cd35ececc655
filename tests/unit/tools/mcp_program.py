"""An MCP server: ``mcp_program.py FOLDER stdio|stubborn|wordy`` or
``mcp_program.py FOLDER http PORT json|events``.

It writes what happens to it into FOLDER/notes.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from pathlib import Path
from typing import Annotated

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, TextContent
from pydantic import Field

FOLDER = Path(sys.argv[1])
server = MCPServer("program", log_level="CRITICAL")


def note(text: str) -> None:
    with (FOLDER / "notes").open("a") as file:
        file.write(f"{text}\n")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def trace(context: Context) -> str:
    """Say which span called."""
    meta = context.request_context.meta or {}
    return str(meta.get("traceparent"))


@server.tool()
def text(value: str) -> CallToolResult:
    """Return a text and no structured content."""
    return CallToolResult(content=[TextContent(text=value)])


@server.tool()
def texts(values: list[str]) -> CallToolResult:
    """Return texts and no structured content."""
    return CallToolResult(content=[TextContent(text=value) for value in values])


@server.tool()
async def count(context: Context) -> str:
    """Count, and report it."""
    for step in (1, 2):
        await context.report_progress(step, 2, f"step {step}")
    return "two"


@server.tool()
async def wait() -> str:
    """Wait for ever."""
    note("waiting")
    try:
        await asyncio.sleep(1_000)
    finally:
        note("stopped")
    return "never"


@server.tool()
def huge() -> str:
    """Say a lot."""
    return "x" * 3_000_000


@server.tool()
def fail() -> str:
    """Fail."""
    raise ToolError("no such customer")


@server.tool()
def die() -> str:
    """End the program."""
    os._exit(3)


@server.tool()
def variable(name: str) -> str:
    """An environment variable."""
    return os.environ.get(name, "")


@server.tool()
def header(context: Context, name: str) -> str:
    """A header of the request."""
    return context.headers.get(name, "") if context.headers else ""


@server.tool()
def hidden() -> str:
    """Something that is not for everybody."""
    note("hidden was called")
    return "secret"


def wordy(a: Annotated[int, Field(description="x" * 13_000)]) -> int:
    """Have much to say about an argument."""
    return a


if sys.argv[2] == "wordy":
    server.tool()(wordy)


def serve_http(port: int, kind: str) -> None:
    listening = socket.create_server(("127.0.0.1", port))
    (FOLDER / "port").write_text(str(listening.getsockname()[1]))
    app = server.streamable_http_app(json_response=kind == "json")
    config = uvicorn.Config(app, log_level="critical", ws="none", timeout_graceful_shutdown=0)
    note("serving")
    asyncio.run(uvicorn.Server(config).serve(sockets=[listening]))


if __name__ == "__main__":
    note(f"pid {os.getpid()}")
    if sys.argv[2] in ("stdio", "stubborn", "wordy"):
        server.run()
        if sys.argv[2] == "stubborn":
            note("stays")
            time.sleep(1_000)
    else:
        serve_http(int(sys.argv[3]), sys.argv[4])
