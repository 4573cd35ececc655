"""Calls of agents that are recorded, or have webhooks."""

from __future__ import annotations

import asyncio
import json
import wave
from pathlib import Path

import numpy as np
import pytest
from agent_fakes import SILENCE, FakeCall, FakeOutlet, FakeRecognizer, calls, open_call, says
from served_agents import Tables, make_agents

from parley.agent.host import Incoming
from parley.calls.database import CallInfo
from parley.calls.folder import CallFolder
from parley.calls.transcripts import read_transcript
from parley.calls.writing import CallWriter
from parley.chat import ChatMessage
from parley.checkpoint import CHECKPOINT_VERSION, HistoryState, Resume, SessionState
from parley.errors import InferenceError
from parley.protocol import (
    CANARY_PREFIX,
    Audio,
    BargeInOptions,
    Checkpoint,
    Closed,
    Control,
    Interrupted,
    Playback,
    ResponseDone,
    Start,
    Text,
    Tool,
    ToolRequest,
    ToolResponse,
    ToolRun,
    TurnMetrics,
    encode,
)

RESTAURANT = """instructions = "You take bookings."
greeting = "Bella Vista, good evening."
record = true
recording.consent = "This call is recorded."
"""
LOUD = np.full(320, 500, np.int16).tobytes()


class Hooks:
    """Webhooks that write down what is posted."""

    def __init__(self, *, want_summary: bool = False) -> None:
        self.want_summary = want_summary
        self.posted: list[tuple[str, dict]] = []

    def post(self, event: str, data: dict) -> None:
        self.posted.append((event, data))


class Recorded:
    """Calls of the restaurant, and what is kept of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.outcomes: list[str] = []
        self.calls = CallFolder(folder / "calls")
        self.writer = CallWriter(self.calls, self.outcomes.append)

    async def call(self, start: Start | None = None, text: str = RESTAURANT, **options) -> FakeCall:
        parts = {name: options.pop(name) for name in ("webhooks", "tools") if name in options}
        registry = make_agents(self.folder, text, **parts)
        start = start or Start(agent="restaurant")
        return await open_call(start, agents=registry, calls=self.writer, **options)

    def infos(self) -> list[CallInfo]:
        assert self.writer.close(30.0)
        return self.calls.entries.newest()

    def info(self) -> CallInfo:
        (one,) = self.infos()
        return one

    def lines(self, kind: str = "event") -> list[dict]:
        raw = (self.calls.path / self.info().id / "events.jsonl").read_text()
        return [
            {"at_ms": line["at_ms"], **line[kind]}
            for line in map(json.loads, raw.splitlines())
            if kind in line
        ]

    def sides(self) -> tuple[np.ndarray, np.ndarray]:
        with wave.open(str(self.calls.path / self.info().id / "audio.wav")) as audio:
            frames = np.frombuffer(audio.readframes(audio.getnframes()), np.int16).reshape(-1, 2)
        return frames[:, 0], frames[:, 1]


@pytest.fixture
def recorded(tmp_path):
    made = Recorded(tmp_path)
    yield made
    made.writer.close(30.0)


async def test_call_without_record_leaves_nothing(recorded):
    call = await recorded.call(text='instructions = "You take bookings."')
    call.send(Text(text="Hello."))
    await call.end(ResponseDone)
    assert recorded.infos() == []
    assert not recorded.calls.path.exists()


async def test_check_of_the_server_is_no_call(recorded):
    hooks = Hooks()
    call = await recorded.call(session_id=f"{CANARY_PREFIX}1", webhooks=hooks)
    await call.end(ResponseDone)
    assert recorded.infos() == []
    assert hooks.posted == []


async def test_call_of_a_test_hears_all_and_leaves_nothing(recorded):
    hooks = Hooks()
    call = await recorded.call(Start(agent="restaurant", test=True), webhooks=hooks)
    await call.end(ResponseDone)
    assert call.synthesizer.requests[0].text.startswith("This call is recorded.")
    assert recorded.infos() == []
    assert hooks.posted == []


async def test_recorded_call_says_so_first_and_is_kept(recorded):
    call = await recorded.call(answers=[says("At eight.")])
    await call.wait_for(TurnMetrics)
    call.send(Text(text="When?"))
    await call.wait_for(TurnMetrics, 2)
    call.send(Control(action="hangup"))
    await call.end(Closed)
    assert call.synthesizer.requests[0].text.startswith("This call is recorded.")
    info = recorded.info()
    assert (info.agent, info.session, info.reason, info.turns) == ("restaurant", "call", "hangup", 2)
    assert (info.ended, info.incomplete, info.part) == (True, "", 1)
    assert recorded.outcomes == [""]
    texts = [line["text"] for line in recorded.lines() if line["type"] == "response_done"]
    assert texts == ["This call is recorded. Bella Vista, good evening.", "At eight."]
    assert [line["text"] for line in recorded.lines("message") if line["type"] == "text"] == ["When?"]
    assert [line["type"] for line in recorded.lines()].count("closed") == 1
    words = " ".join(line["text"] for line in recorded.lines() if line["type"] == "words")
    assert words == "This call is recorded. Bella Vista, good evening. At eight."


async def test_clients_own_greeting_does_not_replace_the_consent(recorded):
    call = await recorded.call(Start(agent="restaurant", greeting=""))
    await call.end(ResponseDone)
    assert [one.text for one in call.synthesizer.requests] == ["This call is recorded."]


async def test_interrupted_answer_is_recorded_as_far_as_it_was_played(recorded):
    long = "This is a very long answer that goes on and on and is stopped before its end comes."
    call = await recorded.call(
        text=RESTAURANT.replace('recording.consent = "This call is recorded."\n', "").replace(
            'greeting = "Bella Vista, good evening."\n', ""
        ),
        hears=[(0, 600, "hello there agent"), (3_000, 4_000, "please stop that right now")],
        answers=[says(long), says("Okay.")],
    )
    interrupted = await call.wait_for(Interrupted)
    await call.end(ResponseDone)
    sent_ms = sum(
        one.samples * 1000 / one.sample_rate
        for one in call.outlet.of(Audio)
        if one.response_id == interrupted.response_id
    )
    assert sent_ms > interrupted.played_ms
    _, agent = recorded.sides()
    first = np.flatnonzero(agent)[0]
    gap = np.flatnonzero(agent[first:] == 0)
    played = gap[gap > 1600][0] if agent[first] else 0
    assert played / 16 == pytest.approx(interrupted.played_ms, abs=120)


async def test_audio_of_a_muted_user_is_not_kept(recorded):
    call = await recorded.call()
    call.room = lambda at_ms: LOUD if at_ms < 4_000 else SILENCE
    await call.until(1_000)
    call.send(Control(action="mute"))
    await call.until(2_000)
    call.send(Control(action="unmute"))
    await call.until(5_000)
    await call.end()
    user, _ = recorded.sides()
    assert np.count_nonzero(user) / 16_000 == pytest.approx(3.0, abs=0.1)


async def test_tools_are_kept_with_their_results(recorded):
    start = Start(agent="restaurant", tools=[Tool(name="greet")])
    call = await recorded.call(
        start,
        tools=Tables(),
        answers=[calls(("find_table", {"people": 2}), ("greet", {})), says("At eight.")],
    )
    await call.wait_for(ResponseDone)
    call.send(Text(text="A table."))
    request = await call.wait_for(ToolRequest)
    call.send(ToolResponse(call_id=request.call_id, output="hi"))
    await call.end(ResponseDone, 2)
    assert call.outlet.of(ToolRun)
    (run,) = [line for line in recorded.lines() if line["type"] == "tool_run"]
    assert (run["name"], run["arguments"], run["output"]) == ("find_table", {"people": 2}, {"at": "20:00"})
    (response,) = [line for line in recorded.lines("message") if line["type"] == "tool_response"]
    assert response["output"] == "hi"


async def test_moved_call_is_two_parts_of_one_call(recorded):
    call = await recorded.call(Start(agent="restaurant", checkpoints=True))
    await call.wait_for(TurnMetrics)
    call.outlet.gone = True
    await call.wait_for(Closed)
    await call.hang_up()
    last = call.outlet.of(Checkpoint)[-1]
    history = next(one.history for one in reversed(call.outlet.of(Checkpoint)) if one.history is not None)
    resume = Resume(state=last.state, history=history, audio_ms=last.state.audio_ms)
    hooks = Hooks()
    other = await recorded.call(Start(agent="restaurant", resume=resume), session_id="other", webhooks=hooks)
    await other.until(1_000)
    await other.end()
    assert not other.synthesizer.requests
    second, first = sorted(recorded.infos(), key=lambda one: -one.part)
    assert (first.part, second.part) == (1, 2)
    assert first.call == second.call == first.id
    assert second.id == f"{first.id}.2"
    assert (first.reason, first.may_continue, second.may_continue) == ("disconnected", True, False)
    assert [event for event, _ in hooks.posted] == ["call.ended"]


async def test_id_of_a_call_that_no_server_made_is_refused(recorded):
    call = await recorded.call(Start(agent="restaurant", checkpoints=True))
    await call.wait_for(ResponseDone)
    state = call.outlet.of(Checkpoint)[-1].state
    await call.end()
    state = type(state)(
        **{field: getattr(state, field) for field in state.__struct_fields__} | {"call": "../../x"}
    )
    other = await recorded.call(Start(agent="restaurant", resume=Resume(state=state)), session_id="../other")
    await other.hang_up()
    assert other.outlet.codes == ["invalid_message"]
    assert len(recorded.infos()) == 1
    assert sorted(path.name for path in recorded.folder.iterdir()) == ["calls", "restaurant.toml"]


async def test_webhooks_get_the_beginning_and_the_end(recorded):
    hooks = Hooks()
    call = await recorded.call(text='instructions = "You take bookings."', webhooks=hooks)
    call.send(Text(text="Hello."))
    await call.end(TurnMetrics)
    (started, first), (ended, last) = hooks.posted
    assert (started, ended) == ("call.started", "call.ended")
    assert first["call"] == last["call"]
    assert (last["agent"], last["session"], last["reason"], last["turns"]) == (
        "restaurant",
        "call",
        "ended",
        1,
    )
    assert last["recorded"] is False
    assert "summary" not in last
    assert recorded.infos() == []


async def test_owner_of_a_call_is_kept_and_not_posted(recorded):
    hooks = Hooks()
    call = await recorded.call(Start(agent="restaurant", owner="anna"), webhooks=hooks)
    await call.end(ResponseDone)
    assert recorded.info().owner == "anna"
    assert [data for _, data in hooks.posted if "owner" in data] == []
    assert len(hooks.posted) == 2


async def test_session_that_was_never_open_is_not_posted(recorded, monkeypatch):
    async def fail(*_):
        raise InferenceError("no")

    monkeypatch.setattr(FakeRecognizer, "start", fail)
    hooks = Hooks()
    call = await recorded.call(webhooks=hooks)
    await call.end(Closed)
    assert hooks.posted == []
    assert recorded.info().reason == "failed"


async def test_webhook_of_the_end_has_a_summary_where_it_is_asked_for(recorded):
    hooks = Hooks(want_summary=True)
    call = await recorded.call(webhooks=hooks, answers=[says("At eight."), says("A table at eight.")])
    await call.wait_for(TurnMetrics)
    call.send(Text(text="When?"))
    await call.end(TurnMetrics, 2)
    assert hooks.posted[-1][1]["summary"] == "A table at eight."
    assert ("user", "When?") not in call.chat.prompt()
    assert "user: When?" in call.chat.prompt()[-1][1]


async def test_end_is_posted_without_a_summary_where_the_model_fails(recorded):
    hooks = Hooks(want_summary=True)
    call = await recorded.call(webhooks=hooks, answers=[says("Yes."), [InferenceError("no")]])
    await call.wait_for(TurnMetrics)
    call.send(Text(text="Hello?"))
    await call.end(TurnMetrics, 2)
    assert hooks.posted[-1][0] == "call.ended"
    assert "summary" not in hooks.posted[-1][1]


async def test_calls_that_end_at_once_are_summarised_some_at_a_time(recorded):
    hooks = Hooks(want_summary=True)
    call = await recorded.call(Start(agent="restaurant"), webhooks=hooks)
    call.chat.first_s = 8.0
    names = [f"call-{number}" for number in range(15)]
    for name in names:
        start = encode(Start(agent="restaurant", greeting="Hello."))
        call.host.handle(Incoming(name, message=start, start=True), FakeOutlet())
    await call.wait_for(TurnMetrics)
    for name in names:
        call.host.handle(Incoming(name, end=True), FakeOutlet())
    await asyncio.sleep(5)
    assert len(call.chat.running) == 4
    await asyncio.sleep(60)
    ended = [data for event, data in hooks.posted if event == "call.ended"]
    assert len(ended) == 15
    assert 4 <= sum("summary" in data for data in ended) < 15
    assert not call.chat.running
    await call.end()


async def test_stopping_server_asks_for_no_summary(recorded):
    hooks = Hooks(want_summary=True)
    call = await recorded.call(webhooks=hooks)
    await call.wait_for(ResponseDone)
    asked = len(call.chat.requests)
    await call.host.shut_down()
    assert (hooks.posted[-1][0], hooks.posted[-1][1]["reason"]) == ("call.ended", "shutdown")
    assert len(call.chat.requests) == asked
    assert recorded.info().reason == "shutdown"
    await call.hang_up()


async def test_playback_reports_are_not_kept(recorded):
    call = await recorded.call()
    done = await call.wait_for(ResponseDone)
    call.send(Playback(response_id=done.response_id, played_ms=done.audio_ms))
    await call.end()
    assert recorded.lines("message") == []


@pytest.mark.parametrize("call_id", ["", "20260504-120000-0123456789abcdef"])
async def test_session_that_goes_on_with_no_call_recorded_here_says_that_it_is_recorded(recorded, call_id):
    state = SessionState(
        version=CHECKPOINT_VERSION, call=call_id, call_part=len(call_id) and 1, call_seal="00"
    )
    call = await recorded.call(Start(agent="restaurant", resume=Resume(state=state)))
    await call.end(ResponseDone)
    assert [one.text for one in call.synthesizer.requests] == ["This call is recorded."]


async def test_session_that_was_never_open_costs_no_summary(recorded, monkeypatch):
    async def fail(*_):
        raise InferenceError("no")

    monkeypatch.setattr(FakeRecognizer, "start", fail)
    said = HistoryState(messages=[ChatMessage(role="user", content="Hello.")])
    state = SessionState(version=CHECKPOINT_VERSION, call="20260504-120000-0123456789abcdef", call_part=1)
    resume = Resume(state=state, history=said)
    call = await recorded.call(Start(agent="restaurant", resume=resume), webhooks=Hooks(want_summary=True))
    await call.end(Closed)
    assert not [one for one in call.chat.requests if one.request_id.endswith("-call")]


async def test_hang_up_while_the_agent_speaks_keeps_what_was_heard_and_said(recorded):
    hooks = Hooks(want_summary=True)
    long = "We have a table at eight, and another one at nine, or would you like to come on Friday?"
    call = await recorded.call(
        Start(agent="restaurant", greeting="", barge_in=BargeInOptions(enabled=False)),
        text='instructions = "You take bookings."\nrecord = true\n',
        webhooks=hooks,
        hears=[(3_000, 9_000, "that is too late")],
        answers=[says(long)],
    )
    call.send(Text(text="When?"))
    await call.until(3_600)
    call.send(Control(action="hangup"))
    await call.end(Closed)
    lines = read_transcript(recorded.calls.path / recorded.info().id).lines
    texts = [(one.kind, one.words) for one in lines]
    (heard,) = [words for kind, words in texts if kind == "agent"]
    assert heard.startswith("We have a table at eight")
    assert not long.endswith(heard)
    assert texts[-2] == ("user", "that is too late")
    asked = call.chat.prompt()[-1][1]
    assert f"assistant: {heard}" in asked
    assert "user: that is too late" in asked
    assert not call.outlet.of(Interrupted)  # for the recording alone
