"""MCP servers of a session: a real one, whose tools the agent calls through the gateway."""

import asyncio
import json
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from openai_session import Session

from parley import protocol
from parley_gateway.apis.realtime.server_events import ClientEventError
from parley_gateway.apis.realtime.session_config import SessionConfig
from parley_gateway.apis.settings import RealtimeSettings

PROGRAM = Path(__file__).parents[2] / "tools/mcp_program.py"
SETTINGS = RealtimeSettings(mcp_private_hosts=("127.0.0.1",), mcp_hosts=("tools.example.com",))
LIMIT_S = 10


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """The address of a server."""
    folder = tmp_path_factory.mktemp("mcp")
    with subprocess.Popen([sys.executable, PROGRAM, folder, "http", "0", "json"]) as process:
        while not (folder / "port").exists() or not (folder / "port").read_text():
            assert process.poll() is None
            asyncio.run(asyncio.sleep(0.05))
        yield f"http://127.0.0.1:{(folder / 'port').read_text()}/mcp"
        process.kill()


def entry(url, **fields):
    return {"type": "mcp", "server_label": "desk", "server_url": url, "require_approval": "never"} | fields


class McpSession(Session):
    """One that waits for what servers do."""

    async def receive_event(self, kind, **fields):
        await self.conversation.on_client_event(json.dumps({"type": kind, **fields}))

    async def until(self, kind):
        """The first event of a type; those before it stay."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                found = next((event for event in self.events if event["type"] == kind), None)
                if found is not None:
                    self.events.remove(found)
                    return found
                await asyncio.sleep(0.01)

    async def until_command(self, name):
        async with asyncio.timeout(LIMIT_S):
            while not (found := [call for call in self.commands.calls if call[0] == name]):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        self.commands.take()
        return found[0]

    def calls(self, name, arguments, call_id="call-1"):
        """The agent calls a tool in its first turn; the response with the call ends."""
        self.on_agent(protocol.ToolRequest(turn=1, call_id=call_id, name=name, arguments=arguments))
        self.wait(0.03)


@asynccontextmanager
async def connected(url, **fields):
    """A session whose server's tools are offered to the agent."""
    session = McpSession(settings=SETTINGS)
    try:
        await session.receive_event(
            "session.update", session={"type": "realtime", "tools": [entry(url, **fields)]}
        )
        await session.until("mcp_list_tools.completed")
        _, update = await session.until_command("update")
        session.offered = [tool.name for tool in update.tools]
        session.on_agent(protocol.Updated())
        session.take()
        yield session
    finally:
        await session.conversation.close()


async def test_tools_are_listed_and_offered(url):
    session = McpSession(settings=SETTINGS)
    tools = [entry(url, allowed_tools=["add", "fail"], authorization="s3cret")]
    await session.receive_event("session.update", session={"type": "realtime", "tools": tools})
    assert (await session.until("session.updated"))["session"]["tools"] == [
        {name: value for name, value in tools[0].items() if name != "authorization"}
    ]
    item_id = (await session.until("mcp_list_tools.in_progress"))["item_id"]
    assert (await session.until("mcp_list_tools.completed"))["item_id"] == item_id
    item = (await session.until("conversation.item.done"))["item"]
    assert (item["type"], item["server_label"]) == ("mcp_list_tools", "desk")
    assert [tool["name"] for tool in item["tools"]] == ["add", "fail"]
    _, update = await session.until_command("update")
    assert [tool.name for tool in update.tools] == ["add", "fail"]
    session.on_agent(protocol.Updated())
    assert "session.updated" not in session.kinds()  # the client has changed nothing
    await session.receive_event("session.update", session={"type": "realtime", "tools": []})
    _, update = await session.until_command("update")
    assert update.tools == []
    await session.conversation.close()


async def test_all_tools_are_offered_where_none_is_named(url):
    async with connected(url) as session:
        assert {"add", "hidden", "wait"} <= set(session.offered)


async def test_a_call_is_answered_without_the_client(url):
    async with connected(url) as session:
        session.calls("add", {"a": 2, "b": 3})
        call = (await session.until("response.output_item.done"))["item"]
        assert (call["type"], call["name"], call["server_label"]) == ("mcp_call", "add", "desk")
        assert json.loads(call["arguments"]) == {"a": 2, "b": 3}
        assert (await session.until("response.done"))["response"]["output"][0]["id"] == call["id"]
        assert (await session.until("response.mcp_call.completed"))["item_id"] == call["id"]
        done = (await session.until("conversation.item.done"))["item"]
        assert (done["id"], json.loads(done["output"]), done["error"]) == (call["id"], {"result": 5}, None)
        assert await session.until_command("answer_tool") == ("answer_tool", "call-1", done["output"])
        session.take()
        session.agent_says("It is five.")
        session.agent_finishes()
        kinds = session.kinds()
        assert (kinds[-1], "response.created" in kinds) == ("response.done", False)  # it had begun before


async def test_secrets_reach_the_server_and_variables_of_the_process_do_not(url, monkeypatch):
    monkeypatch.setenv("HOME_KEY", "of the gateway")
    headers = {"X-Other": "${HOME_KEY}"}
    async with connected(url, authorization="s3cret", headers=headers) as session:
        for name, value in (("authorization", "Bearer s3cret"), ("x-other", "${HOME_KEY}")):
            session.calls("header", {"name": name}, call_id=name)
            _, _, output = await session.until_command("answer_tool")
            assert json.loads(output) == {"result": value}


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("fail", {}, "no such customer"),
        ("add", {"a": "x"}, "a"),
        ("text", {"value": "x" * 300_000}, "the output is too long"),
        ("huge", {}, "the tool failed"),
    ],
)
async def test_a_call_that_fails(url, name, arguments, said):
    async with connected(url) as session:
        session.calls(name, arguments)
        await session.until("response.mcp_call.failed")
        _, _, output = await session.until_command("answer_tool")
        assert said in output
        done = [event["item"] for event in session.events if event["type"] == "conversation.item.done"][-1]
        assert done["error"] == {"type": "tool_execution_error", "message": output}


@pytest.mark.parametrize("approve", [True, False])
async def test_the_client_is_asked_first(url, approve):
    rules = {"never": {"tool_names": ["hidden"]}, "always": {"tool_names": ["add"]}}
    async with connected(url, require_approval=rules) as session:
        session.calls("add", {"a": 2, "b": 3})
        request = (await session.until("conversation.item.done"))["item"]
        assert (request["type"], request["name"]) == ("mcp_approval_request", "add")
        assert (await session.until("response.done"))["response"]["output"][0]["id"] == request["id"]
        session.commands.take()
        reply = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": approve}
        await session.receive_event("conversation.item.create", item=reply)
        _, _, output = await session.until_command("answer_tool")
        assert json.loads(output) == (
            {"result": 5} if approve else {"error": "the user does not approve this call"}
        )
        assert session.calls("hidden", {}, call_id="call-2") is None  # it is not asked about
        await session.until("response.mcp_call.completed")
        await session.receive_event("conversation.item.create", event_id="e", item=reply)
        assert (await session.until("error"))["error"]["event_id"] == "e"


async def test_a_call_that_the_agent_cancels(url):
    async with connected(url) as session:
        session.calls("wait", {})
        await session.until("response.mcp_call.in_progress")
        session.on_agent(protocol.ToolCancelled(turn=1, call_id="call-1", reason="timeout"))
        await session.until("response.mcp_call.failed")
        assert [call for call in session.commands.take() if call[0] == "answer_tool"] == []


async def test_a_call_of_a_server_that_was_left_meanwhile(url):
    async with connected(url, require_approval="always") as session:
        session.calls("add", {"a": 2, "b": 3})
        request = (await session.until("conversation.item.done"))["item"]
        await session.receive_event("session.update", session={"type": "realtime", "tools": []})
        reply = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": True}
        await session.receive_event("conversation.item.create", item=reply)
        await session.until("response.mcp_call.failed")
        await session.until_command("answer_tool")


async def test_a_server_that_is_not_there():
    session = McpSession(settings=SETTINGS)
    tools = [entry("http://127.0.0.1:1/mcp")]
    await session.receive_event("session.update", session={"type": "realtime", "tools": tools})
    await session.until("mcp_list_tools.failed")
    assert (await session.until("conversation.item.done"))["item"]["tools"] == []
    session.take()
    await session.receive_event("session.update", session={"type": "realtime", "tools": tools})
    await session.until("mcp_list_tools.failed")  # it was tried again
    await session.conversation.close()


async def test_servers_are_not_changed_too_often(monkeypatch):
    async def hang(*_):
        await asyncio.Event().wait()

    session = McpSession(settings=SETTINGS)
    monkeypatch.setattr(asyncio, "to_thread", hang)
    for number in range(9):
        tools = [entry("http://127.0.0.1:1/mcp", server_label=f"s{number}-{at}") for at in range(8)]
        await session.receive_event("session.update", session={"type": "realtime", "tools": tools})
    assert (await session.until("error"))["error"]["code"] == "too_many_updates"
    await session.conversation.close()


def test_a_function_of_the_client_comes_before_a_tool_of_the_same_name():
    config = SessionConfig("sess_1", "gpt-realtime", settings=SETTINGS)
    config.change({"type": "realtime", "tools": [{"type": "function", "name": "add"}]})
    config.mcp_functions = [protocol.Tool(name="add", description="of the server"), protocol.Tool(name="sub")]
    assert [(tool.name, tool.description) for tool in config.start().tools] == [("add", ""), ("sub", "")]


def test_another_gateway_gets_the_secrets():
    config = SessionConfig("sess_1", "gpt-realtime", settings=SETTINGS)
    tools = [entry("https://tools.example.com/mcp", authorization="s3cret")]
    config.change({"type": "realtime", "tools": tools})
    other = SessionConfig("sess_1", "gpt-realtime", settings=SETTINGS)
    other.change(config.given())
    assert other.mcp == config.mcp
    assert other.mcp[0].authorization == "s3cret"
    assert "authorization" not in other.body["tools"][0]


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([entry("https://elsewhere.example/mcp")], "session.tools[0]"),
        ([entry("http://tools.example.com/mcp")], "session.tools[0]"),
        ([entry("https://tools.example.com/mcp", headers={"a b": "c"})], "session.tools[0]"),
        ([entry("https://tools.example.com/mcp", headers={"A": "b\nc"})], "session.tools[0]"),
        (
            [entry("https://tools.example.com/mcp", authorization="a", headers={"authorization": "b"})],
            "session.tools[0]",
        ),
        ([{"type": "function", "name": "f"}, entry("file:///etc/passwd")], "session.tools[1]"),
        ([entry("https://tools.example.com/mcp", allowed_tools=["a b"])], "session.tools[0]"),
        ([entry("https://tools.example.com/mcp", allowed_tools=[])], "session.tools[0].allowed_tools"),
        ([entry("https://tools.example.com/mcp", allowed_tools={})], "session.tools[0].allowed_tools"),
        ([entry("https://tools.example.com/mcp")] * 2, "session.tools"),
        ([{"type": "mcp", "server_label": "desk", "connector_id": "c"}], "session.tools[0].connector_id"),
        ([entry("https://tools.example.com/mcp", server_label="1")], "session.tools[0].server_label"),
    ],
)
def test_servers_that_cannot_be_named(tools, param):
    config = SessionConfig("sess_1", "gpt-realtime", settings=SETTINGS)
    with pytest.raises(ClientEventError) as caught:
        config.change({"type": "realtime", "tools": tools})
    assert caught.value.param == param
