"""The language model of profile open, with its weights, in the real server."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest

from parley.chat import ChatMessage
from parley.engines.qwen3 import Qwen3ChatModel
from parley.launcher import EmbeddedServer, ServerOptions
from parley.launcher.options import ROOT
from parley.llm.messages import GenerateRequest, Question, Sampling, TextDelta, ToolCalled
from parley.protocol import Tool
from parley.triton.grpc_client import LoopbackClient

WEIGHTS = Path(os.environ.get("PARLEY_MODELS_DIR") or ROOT / "models") / "qwen2.5-coder-0.5b-w8a8"
SYSTEM = "You are Parley, a friendly voice assistant. Answer in one or two short spoken sentences."
HEATING = Tool(
    name="set_heating",
    description="Switch the heating of a room on or off",
    parameters={
        "type": "object",
        "properties": {"room": {"type": "string"}, "on": {"type": "boolean"}},
        "required": ["room", "on"],
    },
)

pytestmark = pytest.mark.skipif(
    not WEIGHTS.is_dir(), reason=f"no weights in {WEIGHTS}: scripts/fetch_models makes them"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    options = ServerOptions(
        profile="open",
        load_models=("qwen3",),
        state_dir=tmp_path_factory.mktemp("server"),
        grpc_port=0,
        http_port=0,
        metrics_port=0,
        environment={"PARLEY_WEIGHTS_QWEN3": str(WEIGHTS)},
    )
    with EmbeddedServer(options) as running:
        yield running


@pytest.fixture
async def ask(server):
    """Asks; gives the text and the calls of the answer, and its last event."""
    port = LoopbackClient(server.endpoints.grpc, max_streams=8)
    chat = Qwen3ChatModel(port)

    async def run(*said, tools=(), questions=()):
        roles = ("user", "assistant")
        messages = [ChatMessage(role=roles[index % 2], content=text) for index, text in enumerate(said)]
        request = GenerateRequest(
            request_id=uuid.uuid4().hex,
            messages=[ChatMessage(role="system", content=SYSTEM), *messages],
            tools=list(tools),
            questions=list(questions),
            sampling=Sampling(max_tokens=96),
            cache_salt="tests",
        )
        events = [event async for event in chat.generate(request)]
        if questions:
            return events[0].probabilities
        text = "".join(event.text for event in events if isinstance(event, TextDelta))
        calls = [(event.call.name, event.call.arguments) for event in events if isinstance(event, ToolCalled)]
        return text, calls, events[-1]

    yield run
    await port.close()


async def test_model_answers_in_words(ask):
    # Nothing that it has to know: what it knows is at the edge, where processors may differ.
    text, calls, completed = await ask("My name is Tom and I live in Leeds. Where do I live?")
    assert "Leeds" in text
    assert calls == []
    assert completed.finish_reason == "stop"


async def test_model_calls_an_unseen_tool(ask):
    text, calls, completed = await ask("Turn on the heating in the bathroom.", tools=[HEATING])
    assert (text, completed.finish_reason) == ("", "tool_calls")
    ((name, arguments),) = calls
    assert (name, arguments["room"].removeprefix("the "), arguments["on"]) == (
        "set_heating",
        "bathroom",
        True,
    )


async def test_small_talk_calls_nothing(ask):
    text, calls, _ = await ask("Hello, how are you?", tools=[HEATING])
    assert text
    assert "(" not in text
    assert calls == []


async def test_common_prefix_of_prompts_is_read_once(ask):
    text, _, _ = await ask("Who wrote Hamlet?", tools=[HEATING])
    _, _, completed = await ask("Who wrote Hamlet?", text, "And when?", tools=[HEATING])
    assert completed.cached_tokens > completed.prompt_tokens - 96


async def test_text_of_any_language_is_read(ask):
    text, _, completed = await ask("Grüße aus Köln 😀 你好")
    assert text
    assert completed.finish_reason in ("stop", "length")


async def test_what_was_said_changes_the_answers_to_questions(ask):
    questions = [
        Question(text="Does the caller want to cancel?", choices=["Yes", "No"]),
        Question(text="Does the caller want a call back?", choices=["Yes", "No"]),
    ]
    for tools in ((), (HEATING,)):
        cancels = await ask("Please cancel my appointment on Monday.", tools=tools, questions=questions)
        waits = await ask("I am driving, call me back in an hour.", tools=tools, questions=questions)
        assert cancels[0][0] > waits[0][0]
        assert cancels[1][0] < waits[1][0]
