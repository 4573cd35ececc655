"""A recorded call is played again: nothing differs, or what differs is said."""

import dataclasses
import errno
import gzip
import os
import socket
import subprocess
import sys
import time
from functools import partial

import pytest
import test_interleavings
import test_random_failures
from agent_fakes import calls, says
from recorded_calls import DirectWriter, RecordedCall
from served_agents import make_agents
from test_background_tools import SERVICE_ASKS, ReportService
from test_tools import FakeServerTools

from parley.agent.config import AgentConfig
from parley.agent.ports import Outlet
from parley.calls.folder import CallFolder
from parley.calls.writing import CallWriter
from parley.engines.base import ChatModel, Recognizer, RemoteChat, Synthesizer, TurnModel
from parley.errors import InvalidInputError
from parley.protocol import (
    Audio,
    Checkpoint,
    DataCollected,
    Decision,
    Interrupted,
    Playback,
    Start,
    StepChanged,
    Text,
    Tool,
    ToolProgress,
    ToolRequest,
    ToolResponse,
    TurnDecision,
    TurnMetrics,
    TurnOptions,
)
from parley.replay import call_log, comparison, ports, recording
from parley.replay.call_log import CallLogDamagedError, CallLogError, CallLogVersionError, frame
from parley.replay.comparison import Happening, compare, replay
from parley.tools.base import ServerTools, ToolOutcome
from parley_client.cli.program import main

RUNS = 12
SEEDS = [partial(test_interleavings.run, seed) for seed in range(RUNS)] + [
    partial(test_random_failures.run, seed, steered=bool(seed % 2)) for seed in range(RUNS)
]
EAGER = Start(turn=TurnOptions(eagerness="normal"))


@pytest.fixture(autouse=True)
def recorded(tmp_path, monkeypatch):
    """Calls of all tests are recorded."""
    monkeypatch.setattr(RecordedCall, "folder", tmp_path / "records")
    monkeypatch.setattr(RecordedCall, "writer", DirectWriter())
    for module in (test_interleavings, test_random_failures):
        monkeypatch.setattr(module, "FakeCall", RecordedCall)
    return tmp_path / "records"


async def weather_call(config=None, **options):
    """The user asks, the agent uses a tool, and is interrupted while it says what it has learned."""
    call = RecordedCall(
        config or AgentConfig(eagerness="normal"),
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


def differences(file, *changes):
    played = replay(file, changes)
    assert played.differs == bool(played.gone or played.new or played.unanswered)
    return [("-", *one[1:]) for one in played.gone] + [("+", *one[1:]) for one in played.new]


def check_same(file):
    played = replay(file)
    assert (played.gone, played.new, played.unanswered, played.ended_early) == ([], [], None, "")


@pytest.mark.parametrize("run", SEEDS, ids=range(len(SEEDS)))
async def test_call_of_chance_is_replayed_with_the_same_events(run, recorded):
    await run()
    check_same(next(recorded.glob("*.call")))


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
    assert not played.differs
    assert played.length_s > 8
    assert 100 < played.steps < 20_000  # of Python that runs at once: far less than the call's time


async def test_call_is_replayed_by_another_process():
    call = await weather_call()
    command = [sys.executable, "-m", "parley_client.cli.program", "replay", str(call.file)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "7"}
    ended = subprocess.run(  # noqa: ASYNC221 - nothing else runs
        command, env=environment, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines()[-1].endswith(": 0 differ")


async def test_files_behind_one_that_cannot_be_used_are_played(tmp_path, capsys):
    call = await weather_call()
    damaged, missing = tmp_path / "damaged.call", tmp_path / "missing.call"
    damaged.write_bytes(b"no gzip")
    assert (
        main(["replay", str(damaged), str(missing), str(call.file), "--with", "barge_in.enabled=false"]) == 1
    )
    out, err = capsys.readouterr()
    assert [line.rpartition(" ")[2] for line in err.splitlines()] == ["(call_log)", "(call_log)"]
    assert out.splitlines()[-1].startswith("1 calls of ")
    assert out.splitlines()[-1].endswith(": 1 differ")


async def test_call_whose_words_the_language_model_judges_is_replayed():
    heard = [(200, 1_000, "i went to the market"), (1_900, 2_600, "and bought apples")]
    call = RecordedCall(hears=heard, reads_turns=True)
    call.chat.endings = {"i went to the market": 0.01}
    await call.start(EAGER)
    await call.end(TurnMetrics)
    assert any(one.text_probability == 0.01 for one in call.outlet.of(TurnDecision))
    check_same(call.file)
    assert ("-", "end of turn", "sounds_complete i went to the market and bought apples") not in differences(
        call.file
    )
    cut = differences(call.file, "turn_text=none")
    assert ("+", "end of turn", "sounds_complete i went to the market") in cut


async def test_call_with_a_tool_of_the_server_that_reports_is_replayed():
    call = RecordedCall(hears=[(200, 1_000, "make a report")])
    call.host._engines = dataclasses.replace(call.host._engines, server_tools=ReportService())
    call.chat.answers += [SERVICE_ASKS, says("Yes."), says("It is ready.")]
    await call.start()
    await call.end(TurnMetrics, 2)
    assert call.outlet.of(ToolProgress)
    check_same(call.file)


async def test_call_that_is_recorded_in_both_ways_is_replayed_with_its_mark(tmp_path):
    folder = CallFolder(tmp_path / "calls")
    writer = CallWriter(folder, lambda _: None)
    agents = make_agents(tmp_path, 'instructions = "You take bookings."\nrecord = true\n')
    call = RecordedCall(agents=agents, calls=writer, answers=[says("At eight.")])
    await call.start(Start(agent="restaurant", checkpoints=True))
    call.send(Text(text="When?"))
    await call.end(TurnMetrics)
    assert call.outlet.of(Checkpoint)[-1].state.call
    check_same(call.file)
    assert writer.close(30.0)
    assert folder.entries.newest()[0].turns == 1


async def test_unchanged_setting_changes_nothing():
    call = await weather_call()
    assert differences(call.file, "turn.eagerness=normal", "lead_ms=500", "llm_deadline_s=20") == []


async def test_setting_without_interruptions_lets_the_agent_speak_on():
    call = await weather_call()
    gone = ("-", "cut-off", call.outlet.of(Interrupted)[0].spoken_text)
    assert gone in differences(call.file, "barge_in.enabled=false")


async def test_prompt_that_differs_is_reported_where_the_recording_has_no_answer():
    call = await weather_call()
    played = replay(call.file, ["system_prompt=Say nothing."])
    assert played.unanswered is not None
    assert played.unanswered[1] == "chat.generate"


async def test_later_end_of_a_turn_is_a_longer_wait():
    call = await weather_call()
    changed = differences(call.file, "turn.eagerness=patient")
    waits = {
        sign: float(text.split()[1]) for sign, what, text in changed if what == "wait" and text[0] == "2"
    }
    assert waits["+"] > waits["-"]


@pytest.mark.parametrize(
    ("event", "happening"),
    [
        (StepChanged(step="pay", previous="order"), (1.0, "step", "pay")),
        (DataCollected(field="phone", value="5551212"), (1.0, "data", "phone 5551212")),
        (
            Decision(turn=1, name="upset", value="no", probabilities={"no": 0.9}),
            (1.0, "decision", "upset no"),
        ),
    ],
)
def test_outcomes_of_a_call_are_compared(event, happening):
    ask = call_log.Ask(0, 0, "outlet.send", b"", call_log.pack([None, event]))
    assert comparison._happenings([(3.0, ask)], 2.0) == [happening]


def happenings(*texts):
    return [Happening(float(second), "words", text) for second, text in enumerate(texts)]


def test_calls_are_compared_up_to_a_number_of_happenings_from_the_first_difference_on():
    same, tail = ["same"] * 2_000, [str(number) for number in range(2_000)]
    before, after = happenings(*same, *tail), happenings(*same, "new", *tail)
    assert compare(before, before) == ([], [], None)
    assert compare(before, after) == ([], [after[2_000]], 2_500.0)
    gone, new, compared_s = compare(before, after[:2_000])
    assert (gone, new, compared_s) == (before[2_000:2_500], [], 2_500.0)


@pytest.mark.parametrize(
    "change",
    ["turn.eagernes=patient", "nothing=1", "lead_ms=many", "lead_ms=1", "greeting.text=1", "x", "llm=other"],
)
async def test_unknown_setting_is_refused(change):
    call = await weather_call()
    with pytest.raises(InvalidInputError):
        replay(call.file, [change])


# --- what is recorded -----------------------------------------------------------------------------


async def test_file_is_private_and_without_keys():
    secret = "hidden-value"  # noqa: S105
    hidden = ("llm_url", "llm_key_file", "calls_store", "calls_list", "knowledge_store")
    config = AgentConfig(
        eagerness="normal", remote_chat=RemoteChat(key=secret, url=secret), **dict.fromkeys(hidden, secret)
    )
    call = await weather_call(config, cache_salt=secret, owner=secret)
    assert not replay(call.file).differs
    assert call.file.stat().st_mode & 0o777 == 0o600
    assert call.folder.stat().st_mode & 0o777 == 0o700
    content = gzip.decompress(call.file.read_bytes())
    assert b"what is the weather" in content
    assert secret.encode() not in content


async def test_call_of_an_agent_that_hides_something_is_not_recorded(tmp_path, recorded):
    text = 'instructions = "You take bookings."\nrecord = true\nrecording.hide = ["keys"]\n'
    call = RecordedCall(agents=make_agents(tmp_path, text))
    await call.start(Start(agent="restaurant"))
    await call.end()
    assert not recorded.exists()


async def test_health_checks_are_not_recorded(recorded):
    call = RecordedCall(session_id="canary-1")
    await call.start(Start())
    await call.end()
    assert not recorded.exists()


async def test_tests_are_recorded_so_that_calls_of_the_simulator_can_be_replayed():
    call = RecordedCall()
    await call.start(Start(test=True))
    await call.end()
    assert not replay(call.file).differs


async def test_recording_ends_at_its_limit(monkeypatch):
    monkeypatch.setattr(call_log, "MAX_BYTES", 200_000)
    call = await weather_call()
    played = replay(call.file)
    assert (played.ended_early, played.differs) == ("limit", False)


async def test_recording_that_the_disk_does_not_follow_ends():
    RecordedCall.writer.room = 70_000
    call = await weather_call()
    assert replay(call.file).ended_early == "late"


@pytest.mark.parametrize("way", ["full", "refused"])
async def test_call_goes_on_where_the_disk_takes_no_recording(way, monkeypatch, caplog):
    def refuse(*_):
        raise OSError(errno.EDQUOT, "quota")

    if way == "full":
        free = recording.LEAST_FREE - 1
        monkeypatch.setattr(recording.shutil, "disk_usage", lambda _: type("Usage", (), {"free": free}))
    else:
        monkeypatch.setattr(recording, "open_private", refuse)
    call = await weather_call()
    assert call.outlet.of(Interrupted)
    assert [record.getMessage()[:17] for record in caplog.records if record.levelname == "ERROR"] == [
        "a recording ends:"
    ]


async def test_call_goes_on_where_a_result_cannot_be_written_and_its_replay_differs():
    class Tools(FakeServerTools):
        async def call(self, name, arguments, **options):
            return ToolOutcome({"number": 2**70})

    call = RecordedCall(hears=[(200, 1_000, "look it up")])
    call.host._engines = dataclasses.replace(call.host._engines, server_tools=Tools())
    call.chat.answers += [calls(("look_up", {"what": "x"})), says("It is a large number.")]
    await call.start()
    await call.end(TurnMetrics)
    assert "".join(one.text for one in call.outlet.of(Audio)) == "Itisalargenumber."
    assert replay(call.file).differs


async def test_oldest_files_make_room(monkeypatch, recorded):
    recorded.mkdir()
    for number in range(3):
        (recorded / f"2020010{number}-000000-{'0' * 16}.call").write_bytes(bytes(1_000))
    monkeypatch.setattr(recording, "MAX_FOLDER", call_log.MAX_BYTES + 1_500)
    await weather_call()
    assert min(file.name[:8] for file in recorded.iterdir()) == "20200102"


# --- files of others ------------------------------------------------------------------------------


async def test_call_of_a_killed_server_is_replayed_as_far_as_it_goes():
    call = await weather_call()
    call.file.write_bytes(call.file.read_bytes()[:-2_000])
    played = replay(call.file)
    assert (played.ended_early, played.differs) == ("the file is cut", False)


HEADER = frame(
    call_log.Header(
        session="x",
        seed=1,
        started="2026-11-30T10:00:00Z",
        start=b'{"type":"start"}',
        config=b"{}",
        has=frozenset(),
    )
)
FIRST = frame(call_log.Iteration(0, 1.0))


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", CallLogError),
        (b"no gzip", CallLogError),
        (gzip.compress(b"hello"), CallLogError),
        (gzip.compress(b"parley call 999\n" + bytes(100)), CallLogVersionError),
        (gzip.compress(call_log.MAGIC), CallLogDamagedError),
        (gzip.compress(call_log.MAGIC + b"\x00\x00\x00\x03abc"), CallLogDamagedError),
        (gzip.compress(call_log.MAGIC + b"\xff\xff\xff\xff" + bytes(1_000)), CallLogDamagedError),
        (gzip.compress(call_log.MAGIC + HEADER.replace(b"{}", b"[]")), CallLogDamagedError),
        (gzip.compress(call_log.MAGIC + HEADER)[:-20] + bytes(40), CallLogDamagedError),
    ],
    ids=range(9),  # gzip writes the time
)
def test_foreign_file_is_refused(content, error, tmp_path):
    file = tmp_path / "x.call"
    file.write_bytes(content)
    with pytest.raises(CallLogError, match=r"x\.call") as raised:
        replay(file)
    assert type(raised.value) is error


@pytest.mark.parametrize(
    "entries",
    [
        [call_log.Iteration(0, 2.0), call_log.Iteration(0, 1.0)],
        [call_log.Iteration(0, 0.0), call_log.Iteration(0, 1e300)],
        [call_log.Iteration(0, float("nan")), call_log.Iteration(0, 1.0)],
        [call_log.AskAnswer(0, 0, float("nan"), call_log.CANCELLED)],
        [call_log.AskAnswer(0, 0, -1.0, call_log.CANCELLED)],
        [call_log.Stimulus(0, "push_audio", b"\xc4\x00")],
        [call_log.Iteration(0, 1.0), call_log.Stimulus(0, "__init__", b"\xc0")],
        [call_log.Iteration(0, 1.0), call_log.Stimulus(0, "progress", b"\x92\x07\x07")],
        [call_log.Iteration(0, 1.0), call_log.AskAnswer(9, 7, 0.0, call_log.CANCELLED)],
    ],
    ids=range(9),
)
def test_entries_that_no_recording_has_are_refused(entries, tmp_path):
    file = tmp_path / "x.call"
    file.write_bytes(gzip.compress(call_log.MAGIC + HEADER + b"".join(map(frame, entries))))
    with pytest.raises(CallLogDamagedError):
        replay(file)


async def test_large_file_is_refused(monkeypatch):
    call = await weather_call()
    monkeypatch.setattr(call_log, "MAX_BYTES", 10_000)
    with pytest.raises(CallLogDamagedError, match="too large"):
        replay(call.file)


@pytest.mark.parametrize(
    ("kind", "asked"),
    [
        (Recognizer, ports.PortRecognizer),
        (ChatModel, ports.PortChat),
        (Synthesizer, ports.PortSynthesizer),
        (TurnModel, ports.PortTurn),
        (ServerTools, ports.PortTools),
        (Outlet, ports.PortOutlet),
    ],
)
def test_everything_that_a_session_may_ask_goes_through_the_port(kind, asked):
    names = {name for name in (*vars(kind), *kind.__annotations__) if not name.startswith("_")}
    assert names <= set(vars(asked))
