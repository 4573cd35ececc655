"""Functions served by MCP, called as the server's agents call them."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from datetime import date

import httpx
import pytest

from parley.tools.settings import McpServerSettings, ToolSettings
from parley.tools.toolbox import Toolbox
from parley_client import ToolTable, report_progress, tool
from parley_client.tool_server import ToolServer
from parley_client.tools import ToolOptions

NAMES = ["add", "describe", "fail", "later", "hang", "day", "slow"]


class Functions:
    """Some functions, and what has happened in them."""

    def __init__(self):
        self.begun, self.stopped, self.release = asyncio.Event(), asyncio.Event(), threading.Event()

    def table(self):
        @tool
        def add(a: int, b: int = 1) -> dict:
            """Add two numbers."""
            return {"sum": a + b}

        @tool
        def describe() -> str:
            """Describe it."""
            return "Hot, and green"

        @tool
        def fail() -> None:
            """Fail."""
            raise LookupError("no such table")

        @tool
        async def later() -> list:
            """Wait, and return a list."""
            await asyncio.sleep(0)
            return [1, 2]

        @tool
        def day() -> dict:
            """Return a day."""
            return {"day": date(2026, 11, 29)}

        @tool
        async def hang() -> None:
            """Wait for ever."""
            self.begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.stopped.set()

        @tool(timeout_s=0.05)
        def slow() -> None:
            """Take longer than it may."""
            self.release.wait(10)

        return ToolTable([add, describe, fail, later, hang, day, slow])


@pytest.fixture
async def functions():
    made = Functions()
    yield made
    made.release.set()


@asynccontextmanager
async def connected(server, **changes):
    entry = McpServerSettings(**{"name": "agent", "tools": NAMES, "url": server.url, **changes})
    box = Toolbox(ToolSettings(private_hosts=["127.0.0.1"], mcp=[entry]), {})
    await box.open()
    try:
        yield box
    finally:
        await box.close()


@pytest.fixture
async def server(functions):
    made = ToolServer()
    made.replace(functions.table())
    async with made.serving():
        yield made


async def test_functions_are_listed_with_their_schemas(server):
    async with connected(server) as box:
        found = {one.name: one for one in box.tools}
        assert list(found) == NAMES
        assert found["add"].description == "Add two numbers."
        assert found["add"].parameters["required"] == ["a"]
        assert server.listed.is_set()


@pytest.mark.parametrize(
    ("name", "arguments", "output", "is_error"),
    [
        ("add", {"a": 2, "b": 3}, {"sum": 5}, False),
        ("add", {"a": "2"}, {"sum": 3}, False),
        ("add", {"a": "x"}, {"error": "Expected `int`, got `str`"}, True),
        ("describe", {}, "Hot, and green", False),
        ("later", {}, [1, 2], False),
        ("day", {}, {"day": "2026-11-29"}, False),
        ("fail", {}, {"error": "no such table"}, True),
        ("slow", {}, {"error": "no answer within 0.05 s"}, True),
    ],
)
async def test_call_has_the_functions_result_or_its_error(server, name, arguments, output, is_error):
    async with connected(server) as box:
        outcome = await box.call(name, arguments)
    assert (outcome.output, outcome.is_error) == (output, is_error)


async def test_cancelled_call_stops_its_coroutine(server, functions):
    async with connected(server) as box, asyncio.timeout(10):
        call = asyncio.create_task(box.call("hang", {}))
        await functions.begun.wait()
        call.cancel()
        await functions.stopped.wait()


@pytest.mark.parametrize("in_thread", [False, True])
async def test_progress_of_a_function_comes_before_its_result(server, in_thread):
    values = [{"share": 0.5}, "nearly", 3]

    async def add(a: int) -> str:
        """Add slowly."""
        return report(a)

    def report(a: int) -> str:
        """Add slowly."""
        for value in values:
            report_progress(value)
        return str(a)

    table = ToolTable()
    table.add(report if in_thread else add, ToolOptions(name="add"))
    server.replace(table)
    said: list = []
    async with connected(server) as box:
        assert (await box.call("add", {"a": 1}, on_progress=said.append)).output == 1
        assert (await box.call("add", {"a": 1})).output == 1
    assert said == [
        {"progress": number, "total": None, "message": value} for number, value in enumerate(values, 1)
    ]


async def test_call_that_runs_ends_with_the_function_that_was_replaced(server, functions):
    release = asyncio.Event()

    @tool
    async def add(a: int) -> str:
        """Add slowly."""
        functions.begun.set()
        await release.wait()
        return "old"

    server.replace(ToolTable([add]))
    async with connected(server) as box, asyncio.timeout(10):
        old = asyncio.create_task(box.call("add", {"a": 1}))
        await functions.begun.wait()
        server.replace(functions.table())
        assert (await box.call("add", {"a": 1})).output == {"sum": 2}
        release.set()
        assert (await old).output == "old"


async def test_function_that_is_gone_is_an_error(server):
    async with connected(server) as box:
        server.replace(ToolTable())
        outcome = await box.call("add", {"a": 1})
    assert (outcome.output, outcome.is_error) == ({"error": "there is no tool 'add'"}, True)


@pytest.mark.parametrize("path", ["/", "/mcp", "/x"])
async def test_path_that_was_guessed_reaches_nothing(server, path):
    async with httpx.AsyncClient(timeout=30) as client:
        address = server.url.rpartition("/")[0]
        response = await client.post(address + path, json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
    assert response.status_code == 404
    assert not server.listed.is_set()


async def test_page_of_another_site_is_refused(server):
    """A browser that was led to the address, by DNS rebinding, names another host."""
    headers = {"Host": "evil.example", "Accept": "application/json, text/event-stream"}
    async with httpx.AsyncClient(timeout=30) as client:
        request = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        response = await client.post(server.url, json=request, headers=headers)
    assert response.status_code in (403, 421)
    assert not server.listed.is_set()


async def test_each_server_has_a_secret_of_its_own(server):
    other = ToolServer()
    async with other.serving():
        assert other.url.rpartition("/")[2] != server.url.rpartition("/")[2]
        assert len(other.url.rpartition("/")[2]) >= 32
