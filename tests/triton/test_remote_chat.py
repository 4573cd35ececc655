"""An agent whose language model is elsewhere: what that server is asked, and when."""

from __future__ import annotations

import asyncio
import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import httpx
import pytest
from gateway_caller import call
from leftovers import ANY_PORTS

from parley.launcher.options import ServerOptions
from parley.launcher.server import EmbeddedServer
from parley.protocol import (
    Closed,
    EndingOptions,
    ResponseDone,
    Step,
    StepChanged,
    Transition,
    TurnMetrics,
)
from parley_client import AgentAudio, connect
from parley_gateway.app import create_app
from parley_gateway.serving import running
from parley_gateway.settings import load_settings

CHECKS = 3
ANSWER = b"""data: {"choices": [{"delta": {"content": "I see."}, "finish_reason": "stop"}]}

data: [DONE]

"""


def calling(text, name, **arguments):
    """An answer that calls a tool."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    delta = {"content": text, "tool_calls": [{"index": 0, "id": "c", "function": function}]}
    choice = {"delta": delta, "finish_reason": "tool_calls"}
    return f"data: {json.dumps({'choices': [choice]})}\n\ndata: [DONE]\n\n".encode()


CALLS = {
    "bye": calling("Goodbye.", "end_call", reason="all is said"),
    "a table": calling("", "go_to_step", step="book"),
}
"""By what the user has said last."""


@contextmanager
def remote_chat():
    """Its address, and the bodies of all its requests."""
    asked = []

    class ChatServer(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            asked.append(body)
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            called = CALLS.get(body["messages"][-1]["content"]) if body.get("tools") else None
            self.wfile.write(called or ANSWER)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), ChatServer)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", asked
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with remote_chat() as (url, asked):
        agents = tmp_path_factory.mktemp("agents")
        (agents / "second.toml").write_text(
            'instructions = "Be brief."\n[model]\nurl = "http://127.0.0.1:9/v1"\nmodel = "gone"\n'
            f'fallback = [{{ url = "{url}", model = "small" }}]\n'
        )
        options = ServerOptions(
            state_dir=tmp_path_factory.mktemp("remote") / "state",
            **ANY_PORTS,
            environment={
                "PARLEY_VOICE_AGENT_LLM": "openai_chat",
                "PARLEY_VOICE_AGENT_LLM_URL": url,
                "PARLEY_VOICE_AGENT_LLM_MODEL": "any",
                "PARLEY_VOICE_AGENT_AGENTS": str(agents),
            },
        )
        with EmbeddedServer(options) as server:
            yield server, asked


async def checked(gateway, times):
    """Wait until the gateway has asked all models so often."""
    seen = set()
    (one,) = gateway.servers.all
    health = one.models
    async with asyncio.timeout(60):
        while len(seen) < times:
            seen |= {result.duration_ms for result in health.results if result.model == "voice_agent"}
            await asyncio.sleep(0.1)
    assert not health.problem
    return {result.model for result in health.results}


async def test_idle_server_with_gateway_asks_the_remote_model_nothing(served):
    server, asked = served
    settings = load_settings(
        flags={"servers": {"addresses": [server.endpoints.grpc], "canary_s": 0.5}, "listen": {"port": 0}}
    )
    app = create_app(settings)
    async with (
        running(settings, app=app) as gateway,
        httpx.AsyncClient(timeout=30, base_url=gateway.url) as http,
    ):
        models = await checked(app.state.gateway, CHECKS)
        assert (await http.get("/v1/agent")).status_code == 200
        assert "voice_agent" in models
        assert "qwen3" not in models
        assert asked == []
        async with call(gateway.url) as caller:
            await caller.send("text", text="hello")
            await caller.until("metrics")
    assert "hello" in [body["messages"][-1]["content"] for body in asked]


async def test_the_language_model_ends_the_call_when_its_goodbye_was_played(served):
    server, _ = served
    async with connect(server.endpoints.grpc, ending=EndingOptions(end_call=True)) as call:
        call.send_text("bye")
        async with asyncio.timeout(60):
            events = [event async for event in call]
    assert call.closed == Closed(reason="agent_ended", agent_reason="all is said")
    assert events[-1] == call.closed
    spoken = [event.text for event in events if isinstance(event, AgentAudio) and event.text]
    assert spoken == ["Goodbye."]
    (done,) = [event for event in events if isinstance(event, ResponseDone)]
    assert done.audio_ms > 0


async def test_second_model_answers_where_the_first_cannot_be_reached(served):
    server, asked = served
    async with connect(server.endpoints.grpc, agent="second") as call:
        call.send_text("hello")
        async with asyncio.timeout(60):
            async for event in call:
                if isinstance(event, TurnMetrics):
                    break
    assert event.replacement == "small"
    assert asked[-1]["model"] == "small"


async def test_the_language_model_goes_to_another_step_within_its_turn(served):
    server, asked = served
    greet = Step(name="greet", instructions="Greet.", next=[Transition(to="book", when="a table is wanted")])
    steps = [greet, Step(name="book", instructions="Book the table.")]
    begun = len(asked)
    async with connect(server.endpoints.grpc, steps=steps, system_prompt="You are Rosa.") as call:
        call.send_text("a table")
        events = []
        async with asyncio.timeout(60):
            async for event in call:
                events.append(event)
                if isinstance(event, TurnMetrics):
                    break
    found = [(event.previous, event.step) for event in events if isinstance(event, StepChanged)]
    assert found == [("", "greet"), ("greet", "book")]
    first, second = (body for body in asked[begun:] if body["max_tokens"] > 1)
    assert first["messages"][0]["content"] == "You are Rosa.\n\nGreet."
    assert [tool["function"]["name"] for tool in first["tools"]] == ["go_to_step"]
    assert second["messages"][0]["content"] == "You are Rosa.\n\nBook the table."
    assert not second.get("tools")
    assert any(isinstance(event, AgentAudio) and event.text for event in events)
