"""Calls under which a model's process is killed or stopped, and replaced."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
import urllib.request

import pytest
import pytest_asyncio
from chaos.callers import Caller, calling, until_all_answered
from leftovers import AGENT_MODELS, ANY_PORTS, leftovers

from parley.launcher import EmbeddedServer, ServerOptions
from parley.launcher.options import ROOT
from parley.launcher.processes import child_state, find_stubs
from parley.protocol import TurnOptions
from parley_client import Backoff, connect
from parley_client.audio.files import read_speech
from parley_client.cli.demo_tools import DEMO_TOOLS

CALLS = 2
QUESTION = ROOT / "tests" / "data" / "conversation" / "08-time.wav"
LIMIT_S = 180.0  # a language model is loaded beside callers that go on

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(450)]


@pytest.fixture(scope="module")
def supervised(tmp_path_factory):
    """A server of its own, whose models' processes are killed."""
    state = tmp_path_factory.mktemp("recovery")
    running = EmbeddedServer(
        ServerOptions(load_models=AGENT_MODELS, state_dir=state, exit_timeout_s=8, **ANY_PORTS),
        on_progress=lambda line: print(f"{time.time():.1f} {line}"),
    )
    with running:
        session = running.pid
        yield running
        assert running.pid == session, "it was never started again"
    assert leftovers(session, running.shm_prefix) == ([], [])


def make_callers(server, numbers):
    question = read_speech(QUESTION)

    def call():
        return connect(
            server.endpoints.grpc,
            tools=DEMO_TOOLS,
            turn=TurnOptions(eagerness="normal"),
            retry=Backoff(attempts=8),
            resume=False,  # what the server loses is counted, not what clients make good
        )

    return [Caller(number, call, question) for number in numbers]


async def lost_calls(server, callers, model, name):
    """Send a signal to a process of a model; returns the losses of its own calls, and of all others.

    Asserts that it is replaced, and that every caller is answered again.
    """
    stub = next(each for each in find_stubs(server.pid) if each.model == model)
    before = restarts(server, model)
    began = time.time()
    os.kill(stub.pid, signal.Signals[f"SIG{name}"])
    while not (restarts(server, model) > before and entry(server, model)["state"] == "serving"):
        assert time.time() - began < LIMIT_S, (entry(server, model), child_state(stub.pid, server.pid))
        await asyncio.sleep(0.1)
    last = entry(server, model)["last"]
    assert last["noticed"] >= began
    assert last["answered"] >= last["noticed"]
    await until_all_answered(callers, LIMIT_S, since=began)
    losses = [loss.reason for caller in callers for loss in caller.losses if loss.at > began]
    own = [reason for reason in losses if model == "voice_agent" and stub.instance in reason]
    return own, [reason for reason in losses if reason not in own]


def entry(server, model):
    return json.loads(server.record_path.read_text())["models"][model]


def restarts(server, model):
    return sum(entry(server, model)["restarts"].values())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def callers(supervised):
    found = make_callers(supervised, range(CALLS))
    async with calling(found):
        await until_all_answered(found, LIMIT_S)
        yield found


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("espeak", "KILL"),
        ("espeak", "STOP"),
        ("smart_turn", "KILL"),
        ("nemotron_streaming", "STOP"),
        ("nemotron_streaming", "KILL"),
        ("qwen3", "KILL"),
    ],
)
async def test_no_call_is_lost_when_a_model_fails(supervised, callers, model, name):
    assert await lost_calls(supervised, callers, model, name) == ([], [])


@pytest.mark.parametrize("name", ["STOP", "KILL"])
async def test_the_call_of_another_instance_goes_on_when_one_fails(supervised, callers, name):
    # The earlier calls may all be on one instance. Triton gives a new one to that with the most room.
    newcomers = make_callers(supervised, range(CALLS, 2 * CALLS))
    async with calling(newcomers):
        await until_all_answered(newcomers, LIMIT_S)
        own, others = await lost_calls(supervised, [*callers, *newcomers], "voice_agent", name)
    assert not others
    assert 1 <= len(own) < 2 * CALLS, "each instance had one"


async def test_replaced_processes_are_counted(supervised, callers):
    with urllib.request.urlopen(f"http://{supervised.endpoints.metrics}/metrics") as page:  # noqa: ASYNC210
        metrics = page.read().decode()
    record = json.loads(supervised.record_path.read_text())
    assert record["server"] == {"state": "serving", "restarts": {}, "last": None}
    for model, reason in (("espeak", "stopped"), ("qwen3", "died"), ("voice_agent", "died")):
        assert record["models"][model]["restarts"][reason] >= 1
        assert record["models"][model]["state"] == "serving"
        assert f'parley_model_restarts_total{{model="{model}",reason="{reason}"}}' in metrics
