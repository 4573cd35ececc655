"""A client that decides itself: against the real server."""

from __future__ import annotations

import asyncio

import numpy as np

from parley import protocol
from parley.launcher.options import ROOT
from parley_client import AgentAudio, connect
from parley_client.audio.files import read_speech
from parley_client.cli.demo_tools import DEMO_TOOLS

CLIPS = ROOT / "tests/data/conversation"
WAIT_S = 30.0


async def wait_for(call, kind):
    """The next event of a kind, and all before it."""
    seen = []
    async with asyncio.timeout(WAIT_S):
        async for event in call:
            seen.append(event)
            if isinstance(event, kind):
                return event, seen
    raise AssertionError(f"no {kind.__name__} came: {seen}")


async def speak(call, name, *, pause_ms=0):
    """A recording at its own pace, and silence after it."""
    samples = np.concatenate([read_speech(CLIPS / name), np.zeros(pause_ms * 16, np.int16)])
    for at in range(0, len(samples), 640):
        await call.send_audio(samples[at : at + 640])
        await asyncio.sleep(0.04)


async def test_a_key_is_held_while_one_speaks(server):
    turn = protocol.TurnOptions(detection="manual")
    async with connect(server.endpoints.grpc, tools=DEMO_TOOLS, turn=turn) as call:
        await speak(call, "02-weather.wav", pause_ms=1_500)
        call.commit()  # no silence is needed for it
        decision, before = await wait_for(call, protocol.TurnDecision)
        done, answer = await wait_for(call, protocol.ResponseDone)
    assert not [event for event in before if isinstance(event, protocol.ResponseText)]
    assert (decision.reason, decision.text) == ("requested", "what's the weather in paris")
    assert done.audio_ms > 500
    assert sum(isinstance(event, AgentAudio) for event in answer) > 3


async def test_a_turn_may_end_within_a_word(server):
    async with connect(server.endpoints.grpc, turn=protocol.TurnOptions(detection="manual")) as call:
        samples = read_speech(CLIPS / "02-weather.wav")
        await call.send_audio(samples[: len(samples) // 2])
        call.commit()
        decision, _ = await wait_for(call, protocol.TurnDecision)
    assert decision.text.startswith("what")
    assert "paris" not in decision.text


async def test_an_answer_is_asked_for_stopped_and_corrected(server):
    async with connect(server.endpoints.grpc, greeting="") as call:
        call.remember("user", "tell me a story")
        call.ask_response()
        await wait_for(call, AgentAudio)
        await asyncio.sleep(1.5)
        call.interrupt()
        cut, _ = await wait_for(call, protocol.Interrupted)
        call.truncate(cut.response_id, cut.played_ms / 2)
        corrected, _ = await wait_for(call, protocol.Truncated)
    assert cut.reason == "client"
    assert cut.spoken_text.startswith(corrected.spoken_text)
    assert 0 < len(corrected.spoken_text) < len(cut.spoken_text)


async def test_a_session_changes_while_it_runs(server):
    async with connect(server.endpoints.grpc, output_sample_rate=16_000) as call:
        call.send_text("hello")
        voiced, _ = await wait_for(call, AgentAudio)
        await wait_for(call, protocol.TurnMetrics)
        call.update(protocol.Update(output="text", tools=[protocol.Tool(name="get_time")], phrases=["Tokyo"]))
        await wait_for(call, protocol.Updated)
        call.send_text("hello")
        done, seen = await wait_for(call, protocol.ResponseDone)
        call.update(protocol.Update(voice="missing"))
        refused, _ = await wait_for(call, protocol.ErrorEvent)
    assert len(voiced.samples)
    assert done.audio_ms == 0
    assert "".join(event.text for event in seen if isinstance(event, protocol.ResponseText))
    assert refused.code == "unsupported_voice"


async def test_the_recogniser_goes_on_with_other_options(server):
    async with connect(server.endpoints.grpc, tools=DEMO_TOOLS) as call:
        call.update(protocol.Update(vad=protocol.VadOptions(threshold=0.6), phrases=["Paris"]))
        await wait_for(call, protocol.Updated)
        await speak(call, "02-weather.wav", pause_ms=1_500)
        tool, seen = await wait_for(call, protocol.ToolRequest)
    finals = [event for event in seen if isinstance(event, protocol.Transcript) and event.is_final]
    assert [event.text for event in finals] == ["what's the weather in paris"]
    assert tool.arguments["city"] == "Paris"
    assert not [event for event in seen if isinstance(event, protocol.ErrorEvent)]


async def test_discarded_speech_is_not_in_the_history(server):
    async with connect(server.endpoints.grpc, turn=protocol.TurnOptions(detection="manual")) as call:
        await speak(call, "02-weather.wav", pause_ms=1_200)
        call.discard()
        await speak(call, "06-story.wav", pause_ms=300)
        call.commit()
        decision, _ = await wait_for(call, protocol.TurnDecision)
    assert decision.text == "tell me a story"
