"""A recorded call is played again: nothing differs, or what differs is said."""

import gzip
import socket
import time
from functools import partial

import pytest
import test_interleavings
import test_random_failures
from agent_fakes import calls, says
from recorded_calls import DirectWriter, RecordedCall

from parley.agent.config import AgentConfig
from parley.protocol import (
    Audio,
    Interrupted,
    Playback,
    Start,
    Tool,
    ToolRequest,
    ToolResponse,
    TurnMetrics,
)
from parley.replay import call_log, recording
from parley.replay.call_log import CallLogError
from parley.replay.comparison import UnknownSettingError, replay

RUNS = 12
SEEDS = [partial(test_interleavings.run, seed) for seed in range(RUNS)] + [
    partial(test_random_failures.run, seed, steered=bool(seed % 2)) for seed in range(RUNS)
]


@pytest.fixture(autouse=True)
def recorded(tmp_path, monkeypatch):
    """Calls of all tests are recorded."""
    monkeypatch.setattr(RecordedCall, "folder", tmp_path / "records")
    monkeypatch.setattr(RecordedCall, "writer", DirectWriter())
    for module in (test_interleavings, test_random_failures):
        monkeypatch.setattr(module, "FakeCall", RecordedCall)
    return tmp_path / "records"


async def weather_call(**options):
    """The user asks, the agent uses a tool, and is interrupted while it says what it has learned."""
    call = RecordedCall(
        AgentConfig(eagerness="normal"),
        hears=[(200, 1_000, "what is the weather"), (5_000, 5_900, "no stop that now")],
        answers=[calls(("get_weather", {"city": "Rome"})), says("It is sunny in Rome and warm " * 4)],
    )
    await call.start(Start(tools=[Tool(name="get_weather")], greeting="Hello there.", **options))
    request = await call.wait_for(ToolRequest)
    await call.until(2_500)
    call.send(ToolResponse(call_id=request.call_id, output={"sky": "clear"}))
    audio = await call.wait_for(Audio, 3)
    call.send(Playback(response_id=audio.response_id, played_ms=10))
    await call.until(8_000)
    await call.end(TurnMetrics, 2)
    return call


def texts(played):
    return [(one.what, one.before, one.after) for one in played.differences]


@pytest.mark.parametrize("run", SEEDS, ids=range(len(SEEDS)))
async def test_call_of_chance_is_replayed_with_the_same_events(run, recorded):
    await run()
    played = replay(next(recorded.glob("*.call")))
    assert played.differences == []
    assert played.unanswered is None
    assert not played.ended_early


async def test_call_with_tools_and_an_interruption_is_replayed_without_waiting(monkeypatch):
    call = await weather_call()
    assert call.outlet.of(Interrupted)

    def wait(*_):
        raise AssertionError("a replay waits for nothing")

    with monkeypatch.context() as patched:
        patched.setattr(time, "sleep", wait)
        patched.setattr("selectors.DefaultSelector.select", wait)
        patched.setattr(socket.socket, "connect", wait)
        played = replay(call.file)
    assert played.differences == []
    assert played.length_s > 8
    assert 100 < played.steps < 20_000  # of Python that runs at once: far less than the call's time


async def test_unchanged_setting_changes_nothing():
    call = await weather_call()
    assert texts(replay(call.file, ["turn.eagerness=normal", "lead_ms=500"])) == []


async def test_setting_without_interruptions_lets_the_agent_speak_on():
    call = await weather_call()
    played = replay(call.file, ["barge_in.enabled=false"])
    assert ("cut-off", call.outlet.of(Interrupted)[0].spoken_text, "") in texts(played)


async def test_prompt_that_differs_is_reported_where_the_recording_has_no_answer():
    call = await weather_call()
    played = replay(call.file, ["system_prompt=Say nothing."])
    assert played.unanswered is not None
    assert played.unanswered[1] == "generate"


async def test_later_end_of_a_turn_is_a_longer_wait():
    call = await weather_call()
    played = replay(call.file, ["turn.eagerness=patient"])
    assert {"wait", "end of turn"} & {one.what for one in played.differences} or played.unanswered


@pytest.mark.parametrize(
    "change", ["turn.eagernes=patient", "nothing=1", "lead_ms=many", "greeting.text=1", "x"]
)
async def test_unknown_setting_is_refused(change):
    call = await weather_call()
    with pytest.raises(UnknownSettingError):
        replay(call.file, [change])


async def test_file_is_private_and_without_keys():
    call = await weather_call()
    assert call.file.stat().st_mode & 0o777 == 0o600
    assert call.folder.stat().st_mode & 0o777 == 0o700


async def test_recording_ends_at_its_limit(monkeypatch):
    monkeypatch.setattr(recording, "MAX_BYTES", 60_000)
    call = await weather_call()
    played = replay(call.file)
    assert played.ended_early == "limit"
    assert played.differences == []


async def test_recording_that_the_disk_does_not_follow_ends(monkeypatch):
    RecordedCall.writer.room = 70_000
    call = await weather_call()
    assert replay(call.file).ended_early == "late"


async def test_call_of_a_killed_server_is_replayed_as_far_as_it_goes():
    call = await weather_call()
    call.file.write_bytes(call.file.read_bytes()[:-2_000])
    played = replay(call.file)
    assert played.ended_early == "killed"
    assert played.differences == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no gzip",
        gzip.compress(b"hello"),
        gzip.compress(call_log.MAGIC),
        gzip.compress(b"parley call 999\n" + bytes(100)),
        gzip.compress(call_log.MAGIC + b"\x00\x00\x00\x03abc"),
        gzip.compress(call_log.MAGIC + b"\xff\xff\xff\xff" + bytes(1_000)),
    ],
)
def test_foreign_file_is_refused(content, tmp_path):
    file = tmp_path / "x.call"
    file.write_bytes(content)
    with pytest.raises(CallLogError):
        replay(file)


async def test_large_file_is_refused(monkeypatch):
    call = await weather_call()
    monkeypatch.setattr(call_log, "MAX_BYTES", 10_000)
    with pytest.raises(CallLogError, match="too large"):
        replay(call.file)


async def test_oldest_files_make_room(monkeypatch, recorded):
    recorded.mkdir()
    for number in range(3):
        (recorded / f"2020010{number}-000000-{'0' * 16}.call").write_bytes(bytes(1_000))
    monkeypatch.setattr(recording, "MAX_FOLDER", recording.MAX_BYTES + 1_500)
    await weather_call()
    assert min(file.name[:8] for file in recorded.iterdir()) == "20200102"


async def test_health_check_is_not_recorded(recorded):
    call = RecordedCall(session_id="canary-1")
    await call.start(Start())
    await call.end()
    assert not recorded.exists() or not list(recorded.iterdir())
