"""A whole call with the models of the profile open: the conversation of the demonstration."""

from __future__ import annotations

import os
import re
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from parley.launcher.options import OPEN_PROFILE, ROOT, ServerOptions
from parley.launcher.server import EmbeddedServer
from parley_client import connect
from parley_client.cli.conversation import ScriptedConversation
from parley_client.cli.demo_tools import DEMO_TOOLS
from parley_client.cli.script import load_script

sys.path.append(str(ROOT / "tests"))

from plain_servers import plain_server

MODELS_DIR = Path(os.environ.get("PARLEY_MODELS_DIR") or ROOT / "models")
NEEDED = (
    "moonshine-tiny-en",
    "qwen2.5-coder-0.5b-w8a8",
    "hibari-heart",
    "piper-joe",
    "kokoro-82m",
    "misaki-en",
    "g2p-en",
    "test-recordings",
)
pytestmark = pytest.mark.skipif(
    not all((MODELS_DIR / name).is_dir() for name in NEEDED), reason="needs the weights of the profile open"
)
SCRIPT = ROOT / "examples" / "open_conversation.toml"
PARIS, CAPITAL, PANCAKES, STOP = (
    "What's the weather like in Paris?",
    "What is the capital of Japan?",
    "How do I make pancakes?",
    "Okay, stop.",
)


def words(text):
    return re.findall(r"[a-z']+", text.lower().replace("10", "ten"))


@contextmanager
def launched(folder):
    """Yields the address of a server that the launcher has started."""
    options = ServerOptions(
        profile=OPEN_PROFILE,
        state_dir=folder,
        grpc_port=0,
        http_port=0,
        metrics_port=0,
        environment={"PARLEY_MODELS_DIR": str(MODELS_DIR)},
    )
    with EmbeddedServer(options) as server:
        yield server.endpoints.grpc


@contextmanager
def plain(folder):
    """Yields the address of a server that the command of docs/plain-triton.md has started."""
    with plain_server(folder, OPEN_PROFILE, PARLEY_MODELS_DIR=str(MODELS_DIR)) as server:
        yield server.address


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[launched, plain])
async def turns(request, tmp_path_factory):
    with request.param(tmp_path_factory.mktemp("open-call")) as address:
        async with connect(address, tools=DEMO_TOOLS) as call:
            reports = await ScriptedConversation(call, turn_timeout_s=60.0).run(load_script(SCRIPT).turns)
    return {report.said: report for report in reports}


def test_every_turn_is_understood_and_answered_aloud(turns):
    assert {said: turn.problem for said, turn in turns.items() if turn.problem} == {}
    wrong = sum(len(set(words(said)) - set(words(turn.heard))) for said, turn in turns.items())
    assert wrong <= 0.15 * sum(len(words(said)) for said in turns), {
        said: turn.heard for said, turn in turns.items()
    }
    assert all(turn.answer and turn.answered_s is not None for turn in turns.values())


def test_a_question_is_answered_and_a_tool_is_called_for_what_was_said(turns):
    assert "tokyo" in turns[CAPITAL].answer.lower()
    (call,) = turns[PARIS].tools
    assert (call.name, call.arguments["city"]) == ("get_weather", "Paris")


def test_an_answer_that_is_spoken_over_is_stopped(turns):
    assert turns[STOP].barge_in
    assert turns[PANCAKES].interrupted
