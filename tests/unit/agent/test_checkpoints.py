"""What checkpoints contain, and when they are sent."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

from agent_fakes import FakeCall, calls, open_call, says
from test_tools import FakeServerTools

from parley.checkpoint import CHECKPOINT_VERSION, QueuedText, UserTurnState
from parley.protocol import (
    AgentState,
    Checkpoint,
    Connected,
    Control,
    Dtmf,
    GoAway,
    Interrupt,
    Interrupted,
    Playback,
    Remember,
    Respond,
    Say,
    Start,
    Text,
    Tool,
    ToolRequest,
    ToolResponse,
    TurnOptions,
    Update,
    Updated,
)

CHECKPOINTS = Start(checkpoints=True)


def last(call: FakeCall) -> Checkpoint:
    return call.outlet.of(Checkpoint)[-1]


def index_of(call: FakeCall, kind: type) -> int:
    return next(index for index, event in enumerate(call.outlet.events) if isinstance(event, kind))


async def begun(start: Start = CHECKPOINTS, **options) -> FakeCall:
    call = await open_call(start, **options)
    await call.until(100)
    return call


async def test_without_the_option_there_are_none():
    call = await open_call(hears=[(200, 1_000, "hello")])
    await call.until(4_000)
    assert call.outlet.of(Checkpoint) == []
    call.host.drain(10.0)
    assert call.outlet.of(GoAway) == []


async def test_a_canary_gets_none():
    call = await begun(session_id="canary-1")
    assert call.outlet.of(Checkpoint) == []


async def test_the_first_one_has_everything():
    call = await begun(Start(checkpoints=True, system_prompt="Be brief."))
    connected, state, first, *_ = call.outlet.events
    assert isinstance(connected, Connected)
    assert not connected.resumed
    assert state == AgentState(state="listening")
    assert isinstance(first, Checkpoint)
    assert first.settings == Start(checkpoints=True, system_prompt="Be brief.")
    assert first.history is not None
    assert first.history.messages == []
    assert first.state.version == CHECKPOINT_VERSION
    assert first.settled


async def test_audio_advances_by_itself_and_nothing_else_is_sent():
    call = await begun()
    await call.until(9_000)
    positions = [event.state.audio_ms for event in call.outlet.of(Checkpoint)]
    assert len(positions) == 5
    assert all(2_000 < after - before < 2_200 for before, after in pairwise(positions))
    assert all(event.settings is event.history is None for event in call.outlet.of(Checkpoint)[1:])


async def test_muted_audio_counts_too():
    call = await begun()
    call.send(Control(action="mute"))
    await call.until(6_000)
    assert last(call).state.muted
    assert last(call).state.audio_ms > 3_000
    call.send(Control(action="unmute"))
    await call.until(9_000)
    assert not last(call).state.muted


async def test_resume_while_muted_replays_speech_before_the_mute():
    call = await begun()
    call.send(Control(action="mute"))
    await call.until(300)
    assert last(call).state.audio_ms < 100
    assert not last(call).state.muted
    assert (last(call).state.handled, last(call).state.unfinished) == (1, [1])
    await call.until(6_000)
    assert last(call).state.unfinished == []


async def test_audio_stays_at_the_beginning_of_an_utterance():
    call = await open_call(CHECKPOINTS, hears=[(3_000, 9_000, "a very long sentence")])
    await call.until(9_200)
    assert all(event.state.audio_ms <= 2_500 for event in call.outlet.of(Checkpoint))
    call.send(Say(text="I am listening."))
    await call.until(9_250)
    state = last(call).state
    assert (state.audio_ms, state.utterances) == (2_500, 0)
    assert not last(call).settled
    await call.until(9_500)
    state = last(call).state
    assert state.audio_ms >= 9_300
    assert state.utterances == 1


async def test_the_users_turn_is_there_while_it_is_not_over():
    call = FakeCall()
    call.turn_model.scores += [0.0]
    call.hears((500, 1_500, "set a timer for"))
    await call.start(Start(checkpoints=True, turn=TurnOptions(eagerness="patient")))
    await call.until(2_000)
    state = last(call).state
    assert state.user == UserTurnState(text="set a timer for")
    assert (state.agent, state.unanswered) == (None, False)
    assert not last(call).settled


async def test_a_prepared_answer_is_in_no_checkpoint():
    call = FakeCall()
    call.turn_model.scores += [0.6]
    call.hears((500, 1_500, "what is the time"))
    await call.start(Start(checkpoints=True, turn=TurnOptions(eagerness="patient")))
    await call.until(1_900)
    assert call.chat.requests, "an answer is prepared"
    assert last(call).state.agent is None
    assert last(call).state.turns == 0


async def test_queued_texts_digits_and_messages():
    call = await begun(Start(checkpoints=True, greeting="A greeting that takes quite a while to say."))
    call.send(Say(text="First.", interruptible=False))
    call.send(Respond(system_prompt="Rhyme.", use_tools=False, must_call=""))
    call.send(Remember(role="system", text="The user is called Anna."))
    await call.until(150)
    state = last(call).state
    assert state.agent is not None
    assert (state.agent.kind, state.agent.turn) == ("say", 1)
    assert state.queued == [
        QueuedText(text="First.", interruptible=False),
        QueuedText(kind="respond", system_prompt="Rhyme.", use_tools=False, must_call=""),
    ]
    assert [(one.role, one.content) for one in state.messages] == [("system", "The user is called Anna.")]
    call.send(Dtmf(digits="12"))
    await call.until(200)
    assert last(call).state.user.digits == "12"


async def test_a_turn_that_waits_is_unanswered():
    call = await open_call(Start(checkpoints=True), hears=[(500, 1_500, "can I say something")])
    call.send(Say(text="This text cannot be interrupted by anything at all.", interruptible=False))
    await call.until(2_000)
    state = last(call).state
    assert state.unanswered
    assert state.user.text == "can I say something"
    assert state.agent is not None
    assert state.agent.turn == state.turns == 1


async def test_a_tool_is_in_the_state_before_it_is_asked_for():
    call = FakeCall(answers=[calls(("get_time", {})), says("It is noon.")])
    await call.start(Start(checkpoints=True, tools=[Tool(name="get_time")]))
    asked = await call.request(Text(text="what time is it"), ToolRequest)
    before = call.outlet.events[index_of(call, ToolRequest) - 1]
    assert isinstance(before, Checkpoint)
    assert before.state.agent is not None
    (one,) = before.state.agent.rounds
    assert [call.id for call in one.calls] == [asked.call_id]
    assert one.results == {}
    call.send(ToolResponse(call_id=asked.call_id, output="noon"))
    await call.until(1_000)
    answered = [event.state.agent.rounds for event in call.outlet.of(Checkpoint) if event.state.agent]
    assert {asked.call_id: '"noon"'} in [rounds[0].results for rounds in answered if rounds]


async def test_a_tool_of_the_server_is_in_the_state_before_it_runs():
    call = FakeCall()
    call.host._engines = dataclasses.replace(call.host._engines, server_tools=FakeServerTools())
    call.chat.answers += [calls(("look_up", {"word": "a"})), says("Found.")]
    await call.start(CHECKPOINTS)
    call.send(Text(text="look it up"))
    await call.until(200)
    agent = last(call).state.agent
    assert agent is not None
    assert [one.results for one in agent.rounds] == [{}]


async def test_an_interruption_comes_with_its_history():
    call = await open_call(CHECKPOINTS, answers=[says("One two three four five six seven eight nine ten.")])
    call.send(Text(text="count"))
    await call.until(1_500)
    call.send(Interrupt())
    await call.until(1_600)
    before = call.outlet.events[index_of(call, Interrupted) - 1]
    assert isinstance(before, Checkpoint)
    assert before.state.agent is None
    assert before.history is not None
    assert before.history.messages[-1].content.startswith("One two")
    assert before.history.messages[-1].content.endswith("…")


async def test_typed_text_is_not_lost_between_an_interruption_and_its_answer():
    call = await open_call(CHECKPOINTS, answers=[says("One two three four five six seven eight nine ten.")])
    call.send(Text(text="count"))
    await call.until(1_500)
    call.send(Text(text="stop that"))
    before = call.outlet.events[index_of(call, Interrupted) - 1]
    assert isinstance(before, Checkpoint)
    assert before.history is not None
    assert before.history.messages[-1].content == "stop that"
    assert before.state.agent is not None
    assert before.state.agent.turn == 2
    assert before.state.handled == 2
    assert before.answers == call.outlet.of(Interrupted)


async def test_an_update_comes_with_its_settings():
    call = await begun()
    call.send(Update(voice="high"))
    await call.until(200)
    before = call.outlet.events[index_of(call, Updated) - 1]
    assert isinstance(before, Checkpoint)
    assert before.settings is not None
    assert before.settings.voice == "high"


async def test_an_equal_state_is_sent_once():
    call = await begun()
    count = len(call.outlet.of(Checkpoint))
    for played_ms in range(5):
        call.send(Playback(response_id="call-1", played_ms=played_ms))
    await call.until(300)
    assert len(call.outlet.of(Checkpoint)) == count


async def test_clients_are_asked_to_go_elsewhere():
    call = await begun()
    call.host.drain(2.5)
    assert call.outlet.of(GoAway) == [GoAway(time_left_ms=2_500)]
    await call.until(10_000)
    assert call.outlet.reason is None, "a client that stays is not thrown out"


async def test_a_draining_host_refuses_new_sessions_and_answers_canaries():
    call = await begun()
    call.host.drain(10.0)
    other, canary, later = FakeCall(), FakeCall(session_id="canary-2"), FakeCall(session_id="later")
    other.host = canary.host = later.host = call.host
    other.id = "other"
    await other.start(microphone=False)
    assert other.outlet.codes == ["shutting_down"]
    assert other.outlet.reason == "shutdown"
    await canary.start(microphone=False)
    assert canary.outlet.of(Connected)
    canary.send(end=True)
    call.host.end_drain()
    await later.start(microphone=False)
    assert later.outlet.of(Connected)
    later.send(end=True)
