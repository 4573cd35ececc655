"""A plain tritonserver, without the launcher: docs/plain-triton.md."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import shlex
import shutil
import sys
import time
from pathlib import Path

import pytest
import pytest_asyncio
from leftovers import AGENT_MODELS, ANY_PORTS

from parley.canaries.models import CANARIES, CanaryError
from parley.launcher import EmbeddedServer, ServerOptions
from parley.launcher.command import find_installation
from parley.launcher.options import GPU_PROFILE, ROOT, TINY_PROFILE
from parley.launcher.processes import session_members
from parley.protocol import Closed
from parley_client import connect
from parley_client.cli.conversation import ScriptedConversation
from parley_client.cli.demo_tools import DEMO_TOOLS
from parley_client.cli.script import load_script
from parley_stages import open_server
from parley_stages.server import is_model_ready

sys.path.append(str(Path(__file__).parents[1]))

from closing_twin import CUT
from plain_servers import STOP_S, page_command, plain_server, twin_command

pytestmark = pytest.mark.timeout(400)  # a server starts and stops within a test
SCRIPT = ROOT / "examples" / "conversation.toml"
WEATHER, STORY, STOP = "what's the weather in paris", "tell me a story", "stop"
CALLS = 4
INSTANCES = 2  # of the agent in the profile tiny
DEADLINE_S = 100.0
CALLS_S = 5
_IN_FLIGHT = re.compile(r'"Timeout (\d+): Found (\d+) model versions that have in-flight inferences"')


async def hold_until_closed(address, opened):
    """Hold a silent call until the server ends it; returns how it ended."""
    async with connect(address, resume=False) as call:
        opened.release()
        async for event in call:
            if isinstance(event, Closed):
                return event.reason
    return "lost"


async def stop_with_calls(address, stop, said):
    """Call ``stop`` with calls open; returns what it returned and how the calls ended.

    ``said``: the server's log. All instances of the agent must have found the endpoint open.
    """
    opened = asyncio.Semaphore(0)
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
        while said().count("the server is Triton 2.51.0") < INSTANCES:  # noqa: ASYNC110 - of other processes
            await asyncio.sleep(0.1)
        calls = [group.create_task(hold_until_closed(address, opened)) for _ in range(CALLS)]
        for _ in calls:
            await opened.acquire()
        began = time.monotonic()
        stopped = await asyncio.to_thread(stop)
        print(f"stopped with {CALLS} calls open in {time.monotonic() - began:.1f} s")
    return stopped, [call.result() for call in calls]


def stopped_in_time(said):
    """By Triton's count of seconds: until no call was open, and until no model was left."""
    counts = [(int(left), int(found)) for left, found in _IN_FLIGHT.findall(said)]
    calls_s = counts[0][0] - max(left for left, found in counts if found == 0)
    return calls_s <= CALLS_S and "Exit timeout expired" not in said


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with plain_server(tmp_path_factory.mktemp("plain"), TINY_PROFILE) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def turns(server):
    script = [turn for turn in load_script(SCRIPT).turns if turn.text in (WEATHER, STORY, STOP)]
    async with connect(server.address, tools=DEMO_TOOLS) as call:
        reports = await ScriptedConversation(call).run(script)
    return {report.said: report for report in reports}


def test_plain_server_holds_a_call_with_a_tool_and_an_interruption(server, turns):
    assert {said: turn.problem for said, turn in turns.items() if turn.problem} == {}
    (tool,) = turns[WEATHER].tools
    assert (tool.name, tool.arguments) == ("get_weather", {"city": "Paris"})
    assert turns[STORY].interrupted
    assert turns[STOP].barge_in


def test_models_that_the_profile_lacks_refuse_their_requests(server, turns):
    for model in ("kokoro", "moonshine", "parakeet_text"):
        with pytest.raises(CanaryError, match="not_in_profile"):
            CANARIES[model](server.address, 60.0)


async def test_only_models_that_serve_are_ready_for_clients(server, turns):
    serving = ["parakeet_transcribe", "parakeet_tdt", "qwen3", "espeak"]
    names = ("kokoro", "moonshine", "whisper_transcribe", *serving)
    async with open_server(server.address) as opened:
        found = [name for name in names if await is_model_ready(opened.channel, name, DEADLINE_S)]
    assert found == serving


async def test_plain_server_closes_open_calls_when_it_stops(server, turns):
    status, reasons = await stop_with_calls(server.address, server.stop, server.said)
    assert reasons == ["shutdown"] * CALLS
    assert stopped_in_time(server.said())
    assert status == 0
    assert session_members(server.process.pid) == []


async def test_calls_end_where_the_endpoint_closes_before_the_server(tmp_path):
    with plain_server(tmp_path, TINY_PROFILE, entry_point=True, twin=True) as server:
        status, reasons = await stop_with_calls(server.address, server.stop, server.said)
        assert reasons == ["shutdown"] * CALLS
        assert f"\n0 {CUT}" in server.said()
        assert stopped_in_time(server.said())
        assert status == 0
        assert session_members(server.process.pid) == []


@pytest.mark.parametrize("twin", [False, True])
async def test_launched_server_with_open_calls_ends_by_itself(tmp_path, twin):
    """``twin``: where the endpoint closes before the server."""
    installation = find_installation()
    command = [*(twin_command() if twin else ()), str(installation.tritonserver)]
    program = tmp_path / "tritonserver"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    program.chmod(0o755)
    lines = []
    server = EmbeddedServer(
        ServerOptions(load_models=AGENT_MODELS, state_dir=tmp_path / "state", **ANY_PORTS),
        installation=dataclasses.replace(installation, tritonserver=program),
        on_progress=lines.append,
    )
    with server:
        _, reasons = await stop_with_calls(server.endpoints.grpc, server.stop, server.log_path.read_text)
        assert reasons == ["shutdown"] * CALLS
        said = server.log_path.read_text()
        assert stopped_in_time(said)
        assert f"\n0 {CUT}" in said or not twin, said[-4_000:]
    assert [line for line in lines if "killed" in line] == []


def test_gpu_profile_without_gpu_and_weights_serves_and_names_the_remedy(tmp_path):
    (tmp_path / "weights").mkdir()
    with plain_server(tmp_path, GPU_PROFILE, PARLEY_MODELS_DIR=str(tmp_path / "weights")) as server:
        assert CANARIES["espeak"](server.address, 60.0)
        for model in ("kokoro", "qwen3", "t3", "parakeet_encoder"):
            with pytest.raises(CanaryError, match=f"{model} (has no weights|cannot serve) on this server"):
                CANARIES[model](server.address, 60.0)
        refusal = "not known yet"
        while "not known yet" in refusal:  # the agent asks its server soon after the endpoint has opened
            with pytest.raises(CanaryError) as refused:
                CANARIES["voice_agent"](server.address, 60.0)
            refusal = str(refused.value)
        assert "unsupported_version: Triton is 2.51.0" in refusal
        said = server.said()
    for model in ("nemotron_streaming", "parakeet_tdt", "qwen3"):
        assert f"sessions are refused, because {model} cannot be used: " in said
    assert "make fetch MODEL=Qwen3-4B-AWQ" in said


def test_plain_server_without_the_packages_names_the_remedy(tmp_path):
    repository = tmp_path / "model_repository"
    repository.mkdir()
    shutil.copytree(ROOT / "model_repository/voice_agent", repository / "voice_agent")
    command = page_command(TINY_PROFILE).replace("PATH=$PWD/.venv/bin:$PATH ", "", 1)
    command = command.replace("$PWD/model_repository", str(repository))
    with plain_server(tmp_path, TINY_PROFILE, command=command, wait=False) as server:
        assert server.process.wait(STOP_S) == 1
        said = server.said()
    assert "has no package numpy: start tritonserver with PATH=" in said
