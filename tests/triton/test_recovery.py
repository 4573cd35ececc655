"""Calls under which a model's process is killed or stopped, and replaced."""

from __future__ import annotations

import json
import time
import urllib.request

import pytest
import pytest_asyncio
from bench_recovery import make_callers, measure
from chaos.callers import calling, until_all_answered
from leftovers import AGENT_MODELS, ANY_PORTS, leftovers

from parley.launcher import EmbeddedServer, ServerOptions
from parley.launcher.processes import child_state, find_stubs

CALLS = 2
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


def check(server, case):
    """Nothing was lost that did not depend on the process."""
    if not case.passed:
        print(f"{time.time():.1f} {server.record_path.read_text()}")
        for stub in find_stubs(server.pid):
            print(stub, child_state(stub.pid, server.pid))
    assert case.passed, case


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def callers(supervised):
    found = make_callers(supervised.endpoints.grpc, range(CALLS))
    async with calling(found):
        await until_all_answered(found, LIMIT_S)
        yield found


@pytest.mark.parametrize(
    ("model", "signal"),
    [
        ("espeak", "KILL"),
        ("espeak", "STOP"),
        ("smart_turn", "KILL"),
        ("nemotron_streaming", "STOP"),
        ("nemotron_streaming", "KILL"),
        ("qwen3", "KILL"),
    ],
)
async def test_no_call_is_lost_when_a_model_fails(supervised, callers, model, signal):
    case = await measure(supervised, callers, model, signal, LIMIT_S)
    check(supervised, case)
    assert case.calls_of_its_own == 0, "voice_agent alone holds calls"


@pytest.mark.parametrize("signal", ["STOP", "KILL"])
async def test_the_call_of_another_instance_goes_on_when_one_fails(supervised, callers, signal):
    # The earlier calls may all be on one instance. Triton gives a new one to that with the most room.
    newcomers = make_callers(supervised.endpoints.grpc, range(CALLS, 2 * CALLS))
    async with calling(newcomers):
        await until_all_answered(newcomers, LIMIT_S)
        case = await measure(supervised, [*callers, *newcomers], "voice_agent", signal, LIMIT_S)
    check(supervised, case)
    assert 1 <= case.calls_of_its_own < 2 * CALLS, "each instance had one"


async def test_replaced_processes_are_counted(supervised, callers):
    with urllib.request.urlopen(f"http://{supervised.endpoints.metrics}/metrics") as page:  # noqa: ASYNC210
        metrics = page.read().decode()
    record = json.loads(supervised.record_path.read_text())
    assert record["server"] == {"state": "serving", "restarts": {}, "last": None}
    for model, reason in (("espeak", "stopped"), ("qwen3", "died"), ("voice_agent", "died")):
        assert record["models"][model]["restarts"][reason] >= 1
        assert record["models"][model]["state"] == "serving"
        assert f'parley_model_restarts_total{{model="{model}",reason="{reason}"}}' in metrics
