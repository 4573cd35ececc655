"""Tools of MCP servers: real ones, in processes of their own."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from local_http import local_http
from recorded_spans import PARENT

from parley.agent.config import AgentConfig
from parley.agent.tools import STARTED, ToolExecutor
from parley.chat import ToolCall
from parley.protocol import ToolRun
from parley.tools.mcp import McpServer
from parley.tools.settings import McpServerSettings, McpToolSettings, ToolSettings
from parley.tools.toolbox import Toolbox

PROGRAM = Path(__file__).parent / "mcp_program.py"
ALL = ["add", "wait", "huge", "fail", "die", "variable", "header"]
KINDS = ["stdio", "json", "events"]


class Program:
    """One MCP server and a toolbox that uses it."""

    def __init__(self, kind: str, folder: Path, port: int = 0) -> None:
        self.kind = kind
        self.folder = folder
        self.port = port
        self._process = None

    @property
    def notes(self) -> list[str]:
        file = self.folder / "notes"
        return file.read_text().splitlines() if file.exists() else []

    async def start(self) -> None:
        """Start the HTTP server."""
        before = self.notes.count("serving")
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, str(PROGRAM), str(self.folder), "http", str(self.port), self.kind
        )
        await eventually(lambda: self.notes.count("serving") > before)
        self.port = int((self.folder / "port").read_text())

    async def stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    def given_up(self) -> bool:
        """Whether the call that waits is over. With answers in JSON the library's server never notices."""
        if self.kind != "json":
            return "stopped" in self.notes
        connections = psutil.Process().net_connections("tcp4")
        return not any(
            there.raddr and there.raddr.port == self.port and there.status == psutil.CONN_ESTABLISHED
            for there in connections
        )

    def settings(self, **changes) -> ToolSettings:
        there = (
            {"command": [sys.executable, str(PROGRAM), str(self.folder), "stdio"]}
            if self.kind == "stdio"
            else {"url": f"http://127.0.0.1:{self.port}/mcp"}
        )
        entry = McpServerSettings(**{"name": "program", "tools": ALL, **there, **changes})
        return ToolSettings(private_hosts=["127.0.0.1"], mcp=[entry])


async def eventually(condition) -> None:
    """Wait for something that another process does."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - no event comes out of another process
            await asyncio.sleep(0.02)


async def works_again(box) -> None:
    async with asyncio.timeout(20):
        while (await box.call("add", {"a": 1, "b": 1})).output != {"result": 2}:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.02)


@asynccontextmanager
async def opened(settings, environment=None):
    box = Toolbox(settings, environment or {})
    await box.open()
    try:
        yield box
    finally:
        await box.close()
        others = {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}
        assert not others, others


@pytest.fixture(params=KINDS)
async def program(request, tmp_path):
    made = Program(request.param, tmp_path)
    if made.kind != "stdio":
        await made.start()
    yield made
    await made.stop()
    for note in made.notes:
        if note.startswith("pid"):
            assert not psutil.pid_exists(int(note[4:])), "the program goes on"


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ('{"degrees": 8}', '{"degrees":8}'),
        ("[1, 2]", "[1,2]"),
        ("Sunny, {8} degrees", '"Sunny, {8} degrees"'),
        ("[" * 5_000, f'"{"[" * 5_000}"'),
    ],
)
async def test_text_result_that_is_json_is_not_encoded_twice(tmp_path, text, result):
    settings = Program("stdio", tmp_path).settings(tools=["text", "variable"], environment=["TEXT"])
    async with opened(settings, {"TEXT": text}) as box:
        executor = ToolExecutor([], lambda _: None, AgentConfig(max_tool_output=10_000), box)
        call = ToolCall(id="a", name="text", arguments={"value": text})
        assert await executor.call(1, call) == result
        call = ToolCall(id="b", name="variable", arguments={"name": "TEXT"})
        assert await executor.call(1, call) == f'{{"result":{result}}}'


@pytest.mark.parametrize(
    ("texts", "result"),
    [
        (['{"a": 1}', '{"a": 2}'], '[{"a":1},{"a":2}]'),
        (["Sunny.", '{"degrees": 1.10}'], '["Sunny.",{"degrees":1.1}]'),
        (["Sunny.", "Warm."], '"Sunny.\\nWarm."'),
        (["1.10"], '"1.10"'),
        (["1E5"], '"1E5"'),
        (["42"], "42"),
        (['"said"'], '"said"'),
        ([], '""'),
    ],
)
async def test_texts_reach_the_model_as_what_they_are(tmp_path, texts, result):
    async with opened(Program("stdio", tmp_path).settings(tools=["texts"])) as box:
        executor = ToolExecutor([], lambda _: None, AgentConfig(), box)
        call = ToolCall(id="a", name="texts", arguments={"values": texts})
        assert await executor.call(1, call) == result


async def test_a_tool_in_the_background_reports_its_progress(program):
    settings = program.settings(
        tools=["add", "count", "wait"],
        background=["count", "wait"],
        background_timeout_ms=100,
        announce=False,
        cancel_on_interruption=True,
        options={"count": McpToolSettings(announce=True, cancel_on_interruption=False)},
    )
    async with opened(settings) as box:
        modes = {tool.name: (tool.mode, box.timeout_s(tool.name)) for tool in box.tools}
        assert modes == {"add": ("blocking", 10), "count": ("background", 0.1), "wait": ("background", 0.1)}
        marks = {tool.name: (tool.announce, tool.cancel_on_interruption) for tool in box.tools}
        assert marks == {"add": (False, True), "count": (True, False), "wait": (False, True)}
        said: list = []
        assert (await box.call("count", {}, on_progress=said.append)).output == {"result": "two"}
        # An answer in JSON has no room for notifications.
        steps = () if program.kind == "json" else (1, 2)
        assert said == [{"progress": step, "total": 2, "message": f"step {step}"} for step in steps]
        done: asyncio.Future = asyncio.get_running_loop().create_future()
        executor = ToolExecutor([], lambda _: None, AgentConfig(), box, on_result=done.set_result)
        assert await executor.call(1, ToolCall(id="c", name="wait", arguments={})) == STARTED
        assert (await done).result == '{"error":"timeout"}'
        await eventually(program.given_up)
        executor.close()


async def test_allowed_tools_are_offered_and_run(program):
    async with opened(program.settings(tools=["add", "fail", "missing"], prefix="p_")) as box:
        assert [tool.name for tool in box.tools] == ["p_add", "p_fail"]
        assert box.names == {"p_add", "p_fail", "p_missing"}
        assert box.tools[0].description == "Add two numbers."
        assert sorted(box.tools[0].parameters["properties"]) == ["a", "b"]
        outcome = await box.call("p_add", {"a": 2, "b": 3})
        assert (outcome.output, outcome.is_error) == ({"result": 5}, False)
        failed = await box.call("p_fail", {})
        assert failed.is_error
        assert "no such customer" in failed.output
        for name in ("p_missing", "p_hidden", "hidden", "add"):
            assert (await box.call(name, {})).is_error
    assert "hidden was called" not in program.notes


async def test_a_call_s_span_goes_with_it(program):
    async with opened(program.settings(tools=["trace"])) as box:
        assert (await box.call("trace", {}, traceparent=PARENT)).output == {"result": PARENT}
        assert (await box.call("trace", {})).output == {"result": "None"}


async def test_a_dropped_call_is_cancelled_at_the_server(program):
    async with opened(program.settings()) as box:
        events = []
        executor = ToolExecutor([], events.append, AgentConfig(), box)
        task = asyncio.create_task(executor.call(1, ToolCall(id="c", name="wait", arguments={})))
        await eventually(lambda: "waiting" in program.notes)
        executor.drop(1)
        task.cancel()
        await asyncio.wait([task])
        await eventually(program.given_up)
        assert [(type(event), event.is_error) for event in events] == [(ToolRun, True)]
        assert (await box.call("add", {"a": 1, "b": 1})).output == {"result": 2}


async def test_a_call_that_hangs_is_given_up_at_its_own_limit(program):
    async with opened(program.settings(timeout_ms=100)) as box:
        executor = ToolExecutor([], lambda event: None, AgentConfig(), box)
        answer = await executor.call(1, ToolCall(id="c", name="wait", arguments={}))
        assert json.loads(answer) == {"error": "timeout"}
        await eventually(program.given_up)


async def test_a_server_that_ends_is_connected_to_again(program, monkeypatch):
    monkeypatch.setattr("parley.tools.mcp._FIRST_PAUSE_S", 0.05)
    async with opened(program.settings()) as box:
        assert (await box.call("die", {})).is_error
        if program.kind != "stdio":
            await program.stop()
            await eventually(lambda: not box.tools)
            assert (await box.call("add", {"a": 1, "b": 1})).output == {
                "error": "the tool is out of order at the moment"
            }
            await program.start()
        await eventually(lambda: len(box.tools) == len(ALL) and box._servers[0]._client is not None)

        await works_again(box)


async def test_a_huge_answer_is_cut_or_given_up(program):
    async with opened(program.settings()) as box:
        executor = ToolExecutor([], lambda event: None, AgentConfig(), box)
        answer = await executor.call(1, ToolCall(id="c", name="huge", arguments={}))
        assert len(answer) < 5_000
        await works_again(box)


async def test_unreachable_server_blocks_no_call(tmp_path, caplog):
    program = Program("json", tmp_path, port=1)
    async with opened(program.settings()) as box:
        assert list(box.tools) == []
        assert (await box.call("add", {})).output == {"error": "the tool is out of order at the moment"}
    assert "MCP server program: no connection (ConnectError)" in caplog.text


async def test_missing_program_blocks_no_call(tmp_path, caplog):
    settings = Program("stdio", tmp_path).settings(command=[str(tmp_path / "none")])
    async with opened(settings) as box:
        assert list(box.tools) == []
    assert "no connection (FileNotFoundError)" in caplog.text


async def test_a_server_that_hangs_keeps_the_agent_waiting_only_so_long(monkeypatch, caplog):
    monkeypatch.setattr("parley.tools.toolbox._FIRST_CONNECTION_S", 0.2)
    async with local_http() as http:
        http.answers += [None, None, None]
        entry = McpServerSettings(name="hangs", tools=["add"], url=http.url("/mcp"))
        async with opened(ToolSettings(private_hosts=["127.0.0.1"], mcp=[entry])) as box:
            assert list(box.tools) == []
        async with asyncio.timeout(5):
            await http.hung_up.wait()
    assert "not all MCP servers answered" in caplog.text


async def test_addresses_are_checked_for_mcp_servers_too(tmp_path, caplog):
    entry = McpServerSettings(name="inside", tools=["add"], url="https://localhost:1/mcp")
    async with opened(ToolSettings(allowed_hosts=["localhost"], mcp=[entry])) as box:
        assert list(box.tools) == []
    assert "no connection (AddressRefusedError)" in caplog.text


async def test_programs_get_only_the_variables_they_are_given(tmp_path):
    os.environ["PARLEY_TEST_OTHER"] = "not for programs"
    try:
        settings = Program("stdio", tmp_path).settings(environment=["TOKEN"])
        async with opened(settings, {"TOKEN": "abc"}) as box:
            assert (await box.call("variable", {"name": "TOKEN"})).output == {"result": "abc"}
            assert (await box.call("variable", {"name": "PARLEY_TEST_OTHER"})).output == {"result": ""}
    finally:
        del os.environ["PARLEY_TEST_OTHER"]


async def test_headers_are_sent_and_not_logged(tmp_path, caplog):
    caplog.set_level(1)
    program = Program("json", tmp_path)
    await program.start()
    try:
        settings = program.settings(headers={"X-Key": "${TOKEN}"})
        async with opened(settings, {"TOKEN": "s3cr3t-value"}) as box:
            outcome = await box.call("header", {"name": "x-key"})
            assert outcome.output == {"result": "s3cr3t-value"}
    finally:
        await program.stop()
    assert "s3cr3t-value" not in "".join(
        record.getMessage() for record in caplog.records if not record.name.startswith("httpcore2")
    )


async def test_closing_during_the_first_attempt_leaves_nothing(tmp_path):
    program = Program("stdio", tmp_path)
    server = McpServer(program.settings().mcp[0], program.settings(), {})
    server.start()
    await eventually(lambda: program.notes)
    await server.close()
    assert not psutil.pid_exists(int(program.notes[0][4:]))


@asynccontextmanager
async def stubborn(tmp_path):
    """A connected program that does not end when it is left alone."""
    program = Program("stdio", tmp_path)
    command = [sys.executable, str(PROGRAM), str(tmp_path), "stubborn"]
    settings = program.settings(command=command)
    server = McpServer(settings.mcp[0], settings, {})
    server.start()
    await eventually(lambda: server.tools)
    yield program, server
    assert server._task.done()
    (pid,) = [int(note[4:]) for note in program.notes if note.startswith("pid")]
    assert not psutil.pid_exists(pid), "the program goes on"


async def test_closing_while_a_broken_connection_is_torn_down_ends_the_program(tmp_path, monkeypatch):
    monkeypatch.setattr("parley.tools.mcp._FIRST_PAUSE_S", 0.0)
    async with stubborn(tmp_path) as (program, server):
        monkeypatch.setattr("parley.tools.mcp._LIST_S", 0.0)
        server._doubt.set()
        await eventually(lambda: "stays" in program.notes)
        await server.close()


async def test_closing_twice_ends_the_program(tmp_path):
    async with stubborn(tmp_path) as (program, server):
        first = asyncio.create_task(server.close())
        await eventually(lambda: "stays" in program.notes)
        await asyncio.gather(first, server.close())


async def test_a_server_that_is_busy_is_not_taken_for_dead(tmp_path, monkeypatch):
    monkeypatch.setattr("parley.tools.mcp._CHECK_S", 0.3)
    program = Program("stdio", tmp_path)
    async with opened(program.settings()) as box:
        call = asyncio.create_task(box.call("wait", {}))
        await eventually(lambda: "waiting" in program.notes)
        monkeypatch.setattr("parley.tools.mcp._LIST_S", 0.0)  # whatever is asked gets no answer
        done, _ = await asyncio.wait({call}, timeout=1.0)
        assert not done
        call.cancel()
        await asyncio.wait({call})


async def test_a_server_that_keeps_ending_is_tried_less_and_less_often(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("parley.tools.mcp._FIRST_PAUSE_S", 0.01)
    async with opened(Program("stdio", tmp_path).settings()) as box:
        for _ in range(3):
            await works_again(box)
            assert (await box.call("die", {})).is_error
        await works_again(box)
    pauses = [line.args[2] for line in caplog.records if "next attempt" in line.getMessage()]
    assert pauses == [0.01, 0.02, 0.04]


async def test_a_tool_with_a_large_schema_is_left_out(tmp_path, caplog):
    program = Program("stdio", tmp_path)
    command = [sys.executable, str(PROGRAM), str(tmp_path), "wordy"]
    async with opened(program.settings(command=command, tools=["wordy", "add"])) as box:
        assert [tool.name for tool in box.tools] == ["add"]
    assert "tool wordy is left out: description and parameters are longer than" in caplog.text
