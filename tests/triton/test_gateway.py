"""The recorded conversation over the gateway's WebSocket, with the real server."""

from __future__ import annotations

import asyncio
import os
import sys
import wave
from itertools import pairwise

import numpy as np
import pytest
from gateway_caller import (
    CLIPS,
    DEADLINE_S,
    TOOLS,
    DesignCaller,
    ask_for_the_weather,
    call,
    interrupt_a_story,
)

from parley.launcher.options import ROOT
from parley_gateway.serving import running
from parley_gateway.settings import load_settings


@pytest.fixture
async def gateway(server):
    flags = {"listen": {"port": 0}, "servers": {"addresses": [server.endpoints.grpc]}}
    async with running(load_settings(flags=flags)) as one:
        yield one.url


async def ask_for_the_time(caller):
    """A tool, answered by REST."""
    before = len(caller.events)
    caller.say("time")
    request = await caller.until("tool_request", before)
    assert request["name"] == "get_time"
    path = f"/v1/sessions/{caller.session_id}"
    pending = (await caller.http.get(f"{path}/status")).json()["pending_tools"]
    assert [tool["call_id"] for tool in pending] == [request["call_id"]]
    responses = [{"call_id": request["call_id"], "output": {"time": "20:54"}}]
    done = await caller.http.post(f"{path}/tools", json={"responses": responses})
    assert done.json() == {"responses": 1, "tools": None}
    done = await caller.until("response_done", before)
    assert "20:54" in caller.answer(done["response_id"])


async def test_a_conversation_with_tools_and_an_interruption(gateway):
    async with call(gateway, tools=TOOLS) as caller:
        connected = await caller.until("connected")
        assert connected["session_id"] == caller.session_id
        await ask_for_the_weather(caller)
        await ask_for_the_time(caller)
        await interrupt_a_story(caller)
        status = (await caller.http.get(f"/v1/sessions/{caller.session_id}/status")).json()
        assert (status["state"], status["pending_tools"]) == ("open", [])
        assert status["turns"] >= 2
        await caller.send("control", action="hangup")
        assert (await caller.until("closed"))["reason"] == "ended"

    audio = caller.of("audio")
    assert all(len(event.get("pcm", b"")) == 2 * event["samples"] for event in audio)
    assert {event["sample_rate"] for event in audio} == {22_050}
    for one, two in pairwise(audio):
        if one["response_id"] == two["response_id"]:
            assert abs(two["offset_ms"] - one["offset_ms"] - 1000 * one["samples"] / 22_050) <= 1
    assert caller.of("error") == []


async def test_a_conversation_in_the_protocol_design(gateway):
    async with call(gateway, kind=DesignCaller, vad="design", tools=TOOLS) as caller:
        caller.say("weather")
        request = await caller.until("tool_request", tool_name="get_weather")
        assert request["parameters"] == {"city": "Paris"}
        heard = caller.of("transcript")[-1]
        assert heard["is_final"]
        assert heard["text"].lower().strip(".?") == "what's the weather in paris"
        result = {"temperature": 8, "sky": "foggy in Paris"}
        await caller.send("tool_response", request_id=request["request_id"], result=result)
        await caller.until("agent_state", speaking=True)
        await caller.until("agent_state", speaking=False, processing=False)
        await caller.send("tool_response", request_id=request["request_id"], result=result)
        assert (await caller.until("error"))["code"] == "unknown_tool_call"
        before = len(caller.events)
        caller.say("story")
        await caller.until("agent_state", before, speaking=True)
        await asyncio.sleep(2.0)  # the story is being heard
        caller.say("stop")
        await caller.until("vad_state", len(caller.events), state="speaking")
        await caller.until("agent_state", len(caller.events), speaking=False)
        await caller.until("vad_state", len(caller.events), state="idle")
        states = [event["state"] for event in caller.of("vad_state")]
        for kind in ("vad_state", "agent_state"):
            assert all(one != two for one, two in pairwise(caller.of(kind)))
    assert states[:4] == ["speaking", "ended", "idle", "speaking"]
    assert 0 < max(len(event["pcm"]) for event in caller.of("audio")) <= 32_768


async def test_the_example_hears_an_answer(gateway, tmp_path):
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        str(ROOT / "examples" / "gateway_stream.py"),
        str(CLIPS / "02-weather.wav"),
        cwd=tmp_path,
        env=os.environ | {"PARLEY_URL": gateway},
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(DEADLINE_S):
        shown, _ = await program.communicate()
    assert program.returncode == 0
    you, agent, last = shown.decode().splitlines()
    assert you.lower().rstrip(".?") == "you: what's the weather in paris"
    assert agent.startswith("agent: ")
    assert "8 degrees" in agent
    assert last == "The answer is in answer.wav."
    with wave.open(str(tmp_path / "answer.wav")) as answer:
        assert answer.getframerate() == 22_050
        assert np.abs(np.frombuffer(answer.readframes(answer.getnframes()), "<i2")).max() > 1_000


async def test_the_gateway_knows_the_sessions_that_others_have_on_a_server(server):
    address = server.endpoints.grpc
    pages = {"metrics": [f"http://{server.endpoints.metrics}/metrics"], "load_s": 0.5}
    flags = {"listen": {"port": 0}, "servers": {"addresses": [address], **pages}}
    async with running(load_settings(flags=flags)) as one, running(load_settings(flags=flags)) as other:
        (seen,) = one.gateway.servers.all
        async with asyncio.timeout(DEADLINE_S):
            # Calls of earlier tests have ended, but the report may be older than their end.
            while seen.limit is None or seen.sessions:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        async with call(other.url) as caller, asyncio.timeout(DEADLINE_S):
            await caller.until("connected")
            while seen.sessions != 1:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        assert seen.users == 0
        assert not seen.is_draining
