"""A session that goes on with the state of another one, and what it refuses."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import msgspec
import pytest
from agent_fakes import CHUNK_MS, FakeCall, all_of_utterance, calls, now, open_call, says
from moving_client import KnowingChat
from test_tools import FakeServerTools

from parley import protocol
from parley.agent.config import AgentConfig
from parley.agent.host import Incoming
from parley.chat import ChatMessage, ToolCall
from parley.checkpoint import (
    CHECKPOINT_VERSION,
    AgentTurnState,
    BackgroundCall,
    HistoryState,
    QueuedText,
    ResponseProgress,
    Resume,
    RoundState,
    SegmentState,
    SessionState,
    SpokenResponse,
    UserTurnState,
)
from parley.protocol import (
    Audio,
    Checkpoint,
    Closed,
    Commit,
    Connected,
    Interrupt,
    Interrupted,
    ResponseDone,
    ResponseText,
    Start,
    Text,
    Tool,
    ToolCancelled,
    ToolRequest,
    ToolResponse,
    ToolRun,
    Transcript,
    Truncate,
    Truncated,
    TurnOptions,
    encode,
)

ANSWER = "It is noon, and the sun is shining."
ASKED = HistoryState(messages=[ChatMessage(role="user", content="what time is it")])
CALL = ToolCall(id="call-3-1", name="get_time", arguments={})
TOOL = Tool(name="get_time")


def state(**fields) -> SessionState:
    return SessionState(version=CHECKPOINT_VERSION, **fields)


def turn(**fields) -> AgentTurnState:
    return AgentTurnState(**{"turn": 3, "response_id": "old-3", **fields})


def progress(**fields) -> ResponseProgress:
    return ResponseProgress(response_id="old-3", **fields)


def answering(*rounds: RoundState, progress: ResponseProgress | None = None) -> Resume:
    """A session whose agent was about to answer, after these rounds."""
    agent = turn(rounds=list(rounds))
    return Resume(state=state(turns=3, agent=agent), history=ASKED, progress=progress)


async def resumed(
    resume: Resume, *, chat=None, config=None, server_tools=None, start=None, knowledge=None
) -> FakeCall:
    call = FakeCall(config, chat=chat, knowledge=knowledge)
    call.host._engines = dataclasses.replace(call.host._engines, server_tools=server_tools)
    start = start or Start(checkpoints=True, greeting="Hello!")
    await call.start(msgspec.structs.replace(start, resume=resume))
    return call


def history(call: FakeCall) -> list[tuple[str, str]]:
    (session,) = call.host._sessions.values()
    return [(one.role, one.content) for one in session._conversation.agent_turns.history.messages]


def spoken(call: FakeCall) -> str:
    return " ".join(event.text for event in call.outlet.of(Audio) if event.text)


# --- where it goes on -------------------------------------------------------------------------------------


async def test_resume_repeats_nothing_and_continues_numbers():
    call = await resumed(Resume(state=state(turns=2, utterances=4, audio_ms=60_000), audio_ms=60_500))
    call.recognition.script.extend(all_of_utterance(1, 1_000, 1_500, "hello"))
    await call.until(4_000)
    connected = call.outlet.of(Connected)[0]
    assert connected.resumed
    assert not connected.greets
    (final,) = [event for event in call.outlet.of(Transcript) if event.is_final]
    assert final.utterance == 5
    assert call.outlet.of(protocol.SpeechStarted)[0].at_ms == 61_500
    assert {event.turn for event in call.outlet.of(Audio)} == {3}
    latest = call.outlet.of(Checkpoint)[-1].state
    assert (latest.turns, latest.utterances) == (3, 5)
    assert latest.audio_ms > 62_000
    assert spoken(call) == "Okay."


async def test_history_and_summary_are_in_the_prompt():
    kept = HistoryState(
        messages=[ChatMessage(role="user", content="hi"), ChatMessage(role="assistant", content="Hello!")],
        summary="What was said earlier in this conversation, in short: Anna called.",
    )
    call = await resumed(Resume(state=state(turns=1), history=kept), start=Start(system_prompt="Be brief."))
    call.send(Text(text="who am I"))
    await call.until(1_000)
    assert call.chat.prompt() == [
        ("system", f"Be brief.\n\n{kept.summary}"),
        ("user", "hi"),
        ("assistant", "Hello!"),
        ("user", "who am I"),
    ]


async def test_ten_seconds_of_audio_at_once():
    call = await resumed(Resume(state=state(audio_ms=5_000), audio_ms=5_000), start=Start())
    await call.hang_up()
    call.recognition.script.extend(all_of_utterance(1, 2_000, 9_000, "a long sentence"))
    for _ in range(10):
        call.send(audio=bytes(32_000))
    begun = now()
    await call.wait_for(ResponseDone)
    assert now() - begun < 2.0
    assert call.outlet.codes == []
    assert call.outlet.of(protocol.SpeechStopped)[0].at_ms == 14_000


async def test_a_muted_session_stays_muted():
    call = await resumed(Resume(state=state(muted=True)))
    call.recognition.script.extend(all_of_utterance(1, 100, 500, "hello"))
    await call.until(2_000)
    assert call.outlet.of(Transcript) == []
    call.send(protocol.Control(action="unmute"))
    await call.until(4_000)
    assert call.outlet.finals == ["hello"]


async def test_what_was_learned_of_the_pauses_is_kept():
    call = await resumed(
        Resume(state=state(extra_pause_ms=200)),
        start=Start(checkpoints=True, turn=TurnOptions(eagerness="normal")),
    )
    call.recognition.script.extend(all_of_utterance(1, 1_000, 1_500, "hello"))
    await call.until(4_000)
    assert {one.needed_ms for one in call.outlet.of(protocol.TurnDecision)} == {440}
    assert call.outlet.of(Checkpoint)[-1].state.extra_pause_ms == 200


@pytest.mark.parametrize("eagerness", ["off", "normal", "patient"])
async def test_a_turn_that_has_begun_ends_by_silence(eagerness):
    kept = Resume(state=state(utterances=1, user=UserTurnState(text="what time is it")))
    call = await resumed(kept, start=Start(turn=TurnOptions(eagerness=eagerness)))
    await call.until(5_000)
    assert history(call) == [("user", "what time is it"), ("assistant", "Okay.")]


async def test_a_turn_that_has_begun_goes_on():
    kept = Resume(state=state(utterances=1, user=UserTurnState(text="set a timer for")))
    call = await resumed(kept, start=Start(turn=TurnOptions(eagerness="normal")))
    call.recognition.script.extend(all_of_utterance(1, 200, 1_000, "ten minutes"))
    await call.until(4_000)
    assert history(call)[0] == ("user", "set a timer for ten minutes")


async def test_with_manual_turns_it_waits_for_the_client():
    kept = Resume(state=state(utterances=1, user=UserTurnState(text="what time is it")))
    call = await resumed(kept, start=Start(turn=TurnOptions(detection="manual")))
    await call.until(10_000)
    assert history(call) == []
    call.send(Commit())
    await call.until(12_000)
    assert history(call)[0] == ("user", "what time is it")


async def test_keys_go_on():
    call = await resumed(Resume(state=state(user=UserTurnState(digits="12"))))
    call.send(protocol.Dtmf(digits="34#"))
    await call.until(1_000)
    assert history(call)[0] == ("user", "1234")


async def test_a_question_without_an_answer_is_answered_at_once():
    call = await resumed(Resume(state=state(turns=2, unanswered=True), history=ASKED))
    await call.until(2_000)
    assert history(call) == [("user", "what time is it"), ("assistant", "Okay.")]


async def test_a_turn_that_gets_no_answer_is_remembered():
    kept = Resume(state=state(turns=1, unanswered=True, user=UserTurnState(text="by the way")))
    call = await resumed(kept, start=Start(turn=TurnOptions(answer=False)))
    await call.until(2_000)
    assert history(call) == [("user", "by the way")]
    assert not call.chat.requests


async def test_queued_texts_follow_the_resumed_turn():
    kept = Resume(
        state=state(
            turns=3,
            agent=turn(kind="say", text="This is the end of a text.", interruptible=False),
            user=UserTurnState(text="what time is it"),
            unanswered=True,
            queued=[QueuedText(text="Second."), QueuedText(kind="respond", system_prompt="Rhyme.")],
            messages=[ChatMessage(role="system", content="It is late.")],
        )
    )
    call = await resumed(kept)
    await call.until(8_000)
    assert history(call) == [
        ("assistant", "This is the end of a text."),
        ("system", "It is late."),
        ("assistant", "Second."),
        ("assistant", "Okay."),
        ("user", "what time is it"),
        ("assistant", "Okay."),
    ]
    assert call.chat.requests[0].messages[0].content == "Rhyme."


# --- the turn under way -----------------------------------------------------------------------------------


async def test_an_answer_of_which_nothing_came_is_begun_anew():
    call = await resumed(answering())
    await call.until(2_000)
    assert {event.turn for event in call.outlet.of(Audio)} == {3}
    assert {event.response_id for event in call.outlet.of(Audio)} == {"old-3"}
    assert spoken(call) == "Okay."


async def test_an_answer_goes_on_behind_its_words():
    chat = KnowingChat({"what time is it": says(ANSWER)})
    begun = progress(text="It is noon, and", words=[(0, "It"), (150, "is")], audio_ms=300, played_ms=250)
    call = await resumed(answering(progress=begun), chat=chat)
    await call.until(4_000)
    assert chat.requests[0].prefix == "It is noon, and"
    assert "".join(event.text for event in call.outlet.of(ResponseText)) == " the sun is shining."
    assert spoken(call) == "noon, and the sun is shining."
    assert call.outlet.of(Audio)[0].offset_ms == 300
    (done,) = call.outlet.of(ResponseDone)
    last = call.outlet.of(Audio)[-1]
    assert done.audio_ms == round(last.offset_ms + last.samples / last.sample_rate * 1000)
    assert history(call)[-1] == ("assistant", ANSWER)


async def test_a_complete_text_ends_at_once():
    chat = KnowingChat({"what time is it": says(ANSWER)})
    begun = progress(text=ANSWER, words=[(0, "It is noon,")], audio_ms=700, played_ms=600)
    call = await resumed(answering(progress=begun), chat=chat)
    await call.until(4_000)
    assert spoken(call) == "and the sun is shining."
    assert history(call)[-1] == ("assistant", ANSWER)
    assert call.outlet.codes == []


async def test_an_answer_that_was_cut_at_its_longest_is_not_written_further():
    answered = turn(rounds=[RoundState(text=f"{ANSWER}…", said=True)])
    begun = progress(text=f"{ANSWER} At night it is da", words=[(0, "It is noon,")], audio_ms=700)
    call = await resumed(Resume(state=state(turns=3, agent=answered), history=ASKED, progress=begun))
    await call.until(4_000)
    assert not call.chat.requests
    assert spoken(call) == "and the sun is shining."
    assert history(call)[1:] == [("assistant", f"{ANSWER}…")]
    assert [done.finish_reason for done in call.outlet.of(ResponseDone)] == ["length"]


@pytest.mark.parametrize("written", [False, True])
async def test_a_fixed_text_goes_on(written):
    begun = progress(text="Welcome to Parley." if written else "", words=[(0, "Welcome")], audio_ms=500)
    kept = Resume(state=state(turns=3, agent=turn(kind="say", text="Welcome to Parley.")), progress=begun)
    call = await resumed(kept)
    await call.until(3_000)
    assert spoken(call) == ("to Parley." if written else "Welcome to Parley.")
    assert len(call.outlet.of(ResponseText)) == (not written)
    assert history(call) == [("assistant", "Welcome to Parley.")]


async def test_a_response_that_was_sent_is_only_remembered():
    begun = progress(text=ANSWER, words=[(0, ANSWER)], audio_ms=3_000, played_ms=1_000, done=True)
    call = await resumed(answering(progress=begun))
    await call.until(1_000)
    assert history(call) == [("user", "what time is it")]
    await call.until(3_000)
    assert history(call)[-1] == ("assistant", ANSWER)
    assert not call.chat.requests
    assert call.outlet.of(Audio) == call.outlet.of(ResponseDone) == call.outlet.of(ResponseText) == []


@pytest.mark.parametrize("after_ms", [20, 750])
async def test_an_interruption_remembers_the_words_before_and_after(after_ms):
    chat = KnowingChat({"what time is it": says(ANSWER)})
    begun = progress(
        text="It is noon, and the",
        words=[(0, "It"), (150, "is"), (300, "noon,")],
        audio_ms=600,
        played_ms=600,
    )
    call = await resumed(answering(progress=begun), chat=chat)
    await call.until(after_ms)
    call.send(Interrupt())
    await call.until(after_ms + 500)
    (interrupted,) = call.outlet.of(Interrupted)
    assert interrupted.turn == 3
    assert interrupted.spoken_text.startswith("It is noon,")
    assert ("shining" in interrupted.spoken_text) is False
    assert ("sun" in interrupted.spoken_text) is (after_ms > 100)
    assert history(call)[-1][1].startswith("It is noon")
    call.send(Truncate(response_id="old-3", played_ms=250))
    await call.until(after_ms + 600)
    assert call.outlet.of(Truncated)[0].spoken_text == "It is"
    assert history(call)[-1] == ("assistant", "It is…")


async def test_results_are_kept_and_no_tool_runs_again():
    one = RoundState(calls=[CALL], results={CALL.id: '"noon"'})
    call = await resumed(answering(one), start=Start(tools=[TOOL], checkpoints=True))
    await call.until(2_000)
    assert call.outlet.of(ToolRequest) == []
    assert [one.role for one in call.chat.requests[0].messages][-3:] == ["user", "assistant", "tool"]
    assert [role for role, _ in history(call)] == ["user", "assistant", "tool", "assistant"]


async def test_a_clients_tool_is_waited_for():
    one = RoundState(calls=[CALL])
    call = await resumed(answering(one), start=Start(tools=[TOOL]))
    await call.until(1_000)
    assert not call.chat.requests
    call.send(ToolResponse(call_id=CALL.id, output="noon"))
    await call.until(2_000)
    assert call.outlet.of(ToolRequest) == []
    assert call.chat.requests[0].messages[-1].content == '"noon"'
    call.send(ToolResponse(call_id=CALL.id, output="again"))
    await call.until(2_100)
    assert call.outlet.codes == ["unknown_tool_call"]


@pytest.mark.parametrize("goes_on", [False, True])
async def test_a_response_that_crossed_a_cancellation_at_the_last_server_is_dropped(goes_on):
    """The client sends it again: no checkpoint contained it when the server was lost."""
    late = RoundState(calls=[CALL], results={CALL.id: '{"error":"timeout"}'})
    agent = turn(rounds=[late]) if goes_on else None
    call = await resumed(Resume(state=state(turns=3, agent=agent), history=ASKED), start=Start(tools=[TOOL]))
    call.send(ToolResponse(call_id=CALL.id, output="noon"))
    call.send(ToolResponse(call_id="call-2-1", output="ten"))
    await call.until(1_000)
    assert call.outlet.codes == []
    call.send(ToolResponse(call_id="call-4-1", output="ten"))
    await call.until(1_100)
    assert call.outlet.codes == ["unknown_tool_call"]


async def test_the_result_may_come_before_the_session_is_open():
    call = FakeCall()
    one = RoundState(calls=[CALL])
    start = Start(tools=[TOOL], resume=answering(one))
    call.host.handle(Incoming(call.id, message=encode(start), start=True), call.outlet)
    call.send(ToolResponse(call_id=CALL.id, output="noon"))
    await call.outlet.more.wait()
    call.began = now()
    await call.until(1_000)
    assert call.chat.requests[0].messages[-1].content == '"noon"'


async def test_a_result_that_never_comes_has_a_deadline():
    one = RoundState(calls=[CALL])
    call = await resumed(answering(one), start=Start(tools=[TOOL]))
    await call.until(15_000)
    assert call.outlet.codes == ["tool_timeout"]
    assert call.outlet.of(ToolCancelled)[0].call_id == CALL.id
    assert spoken(call).endswith("Okay.")


async def test_a_tool_of_the_server_is_never_run_again():
    one = RoundState(calls=[ToolCall(id="call-3-1", name="look_up", arguments={"word": "a"})])
    call = await resumed(answering(one), server_tools=FakeServerTools())
    await call.until(2_000)
    assert call.outlet.of(ToolRun) == []
    assert "may have been done" in call.chat.requests[0].messages[-1].content
    assert spoken(call) == "Okay."


async def test_calls_of_a_later_round_have_new_ids():
    chat_answers = [calls(("get_time", {})), says("Noon.")]
    one = RoundState(calls=[CALL], results={CALL.id: '"noon"'})
    call = FakeCall()
    call.chat.answers += chat_answers
    resume = answering(one)
    await call.start(Start(tools=[TOOL], resume=resume))
    asked = await call.wait_for(ToolRequest)
    assert asked.call_id.startswith("call-3-2-")
    call.send(ToolResponse(call_id=asked.call_id, output="noon"))
    await call.until(2_000)
    assert spoken(call) == "Noon."


async def test_the_number_of_rounds_stays_bounded():
    rounds = [
        RoundState(
            calls=[ToolCall(id=f"c{index}", name="get_time", arguments={})], results={f"c{index}": "1"}
        )
        for index in range(4)
    ]
    call = await resumed(answering(*rounds), start=Start(tools=[TOOL]))
    await call.until(1_000)
    assert [list(request.tools) for request in call.chat.requests] == [[]]


async def test_text_only():
    chat = KnowingChat({"what time is it": says(ANSWER)})
    call = await resumed(
        answering(progress=progress(text="It is noon,")),
        chat=chat,
        start=Start(output="text"),
    )
    await call.until(1_000)
    assert "".join(event.text for event in call.outlet.of(ResponseText)) == " and the sun is shining."
    assert call.outlet.of(Audio) == []
    assert history(call)[-1] == ("assistant", ANSWER)


async def test_progress_of_another_response_is_left_out():
    other = ResponseProgress(response_id="old-2", text="Hm", audio_ms=100, played_ms=100)
    call = await resumed(answering(progress=other))
    await call.until(2_000)
    assert call.outlet.of(Audio)[0].offset_ms == 0
    assert spoken(call) == "Okay."


async def test_a_client_that_is_still_asks_for_prompts_and_leaves():
    call = await resumed(
        Resume(state=state()), start=Start(silence=protocol.SilenceOptions(prompt_after_ms=2_000))
    )
    await call.until(5_000)
    assert spoken(call).startswith("Are you still there?")


# --- what is refused --------------------------------------------------------------------------------------


def with_answers(*responses: list[SegmentState]) -> Resume:
    kept = [
        SpokenResponse(response_id=f"r{number}", audio_ms=10, segments=segments)
        for number, segments in enumerate(responses)
    ]
    return Resume(state=state(), history=HistoryState(responses=kept))


BIG = "x" * 70_000
RESULT = ChatMessage(role="tool", content="1", tool_call_id="a")
CALLS = ChatMessage(role="assistant", tool_calls=[ToolCall(id="a", name="f", arguments={})])


@pytest.mark.parametrize(
    "bad",
    [
        Resume(state=state(turns=-1)),
        Resume(state=state(turns=10**9)),
        Resume(state=state(utterances=-1)),
        Resume(state=state(audio_ms=-1)),
        Resume(state=state(extra_pause_ms=-1)),
        Resume(state=state(extra_pause_ms=301)),
        Resume(state=state(), audio_ms=10**12),
        Resume(state=state(audio_ms=2_000), audio_ms=1_000),
        Resume(state=state(user=UserTurnState(text="x" * 33_000))),
        Resume(state=state(user=UserTurnState(digits="1#"))),
        Resume(state=state(user=UserTurnState(digits="x"))),
        Resume(state=state(user=UserTurnState(digits="1" * 65))),
        Resume(state=state(queued=[QueuedText(text="a")] * 17)),
        Resume(state=state(queued=[QueuedText(text=" ")])),
        Resume(state=state(queued=[QueuedText(text="a" * 5_000)])),
        Resume(state=state(queued=[QueuedText(kind="respond", system_prompt=BIG)])),
        Resume(state=state(messages=[ChatMessage(role="user", content="a")] * 257)),
        Resume(state=state(messages=[ChatMessage(role="user", content=" ")])),
        Resume(state=state(messages=[RESULT])),
        Resume(state=state(), history=HistoryState(messages=[RESULT])),
        Resume(state=state(), history=HistoryState(messages=[CALLS])),
        Resume(state=state(), history=HistoryState(messages=[CALLS, RESULT, RESULT])),
        Resume(state=state(), history=HistoryState(messages=[CALLS, ChatMessage(role="user"), RESULT])),
        Resume(state=state(), history=HistoryState(messages=[ChatMessage(role="user")] * 4_001)),
        Resume(state=state(), history=HistoryState(summary=BIG)),
        Resume(state=state(turns=2, agent=turn())),
        Resume(state=state(turns=0, agent=turn(turn=0))),
        Resume(state=state(turns=3, agent=turn(response_id=""))),
        Resume(state=state(turns=3, agent=turn(response_id="a\nb"))),
        Resume(state=state(turns=3, agent=turn(response_id="a" * 201))),
        Resume(state=state(turns=3, agent=turn(kind="say"))),
        Resume(state=state(turns=3, agent=turn(kind="say", text="a" * 5_000))),
        Resume(state=state(turns=3, agent=turn(kind="say", text="a", rounds=[RoundState()]))),
        Resume(state=state(turns=3, agent=turn(system_prompt=BIG))),
        Resume(state=state(turns=3, agent=turn(rounds=[RoundState(calls=[CALL, CALL])]))),
        Resume(state=state(turns=3, agent=turn(rounds=[RoundState(calls=[CALL])] * 2))),
        Resume(state=state(turns=3, agent=turn(rounds=[RoundState(results={"a": "1"})]))),
        Resume(state=state(turns=3, agent=turn(rounds=[RoundState()] * 9))),
        Resume(state=state(turns=3, agent=turn(rounds=[RoundState(text=BIG)]))),
        Resume(
            state=state(
                turns=3, agent=turn(rounds=[RoundState(calls=[CALL], results={CALL.id: "x" * 5_000})])
            )
        ),
        Resume(state=state(turns=1, background=[BackgroundCall(turn=2, call=CALL)])),
        Resume(state=state(turns=1, background=[BackgroundCall(turn=1, call=CALL)] * 2)),
        Resume(state=state(turns=1, background=[BackgroundCall(turn=1, call=CALL, result="x" * 5_000)])),
        with_answers(*[[SegmentState(text="a")] * 2_100] * 2),
        with_answers(*[[SegmentState(text="a", words=[(0, 1, 0)] * 4_100)]] * 2),
        Resume(state=state(), progress=progress(text=BIG)),
        Resume(state=state(), progress=progress(audio_ms=-1)),
        Resume(state=state(), progress=progress(audio_ms=10**9)),
        Resume(state=state(), progress=progress(audio_ms=100, played_ms=200)),
        Resume(state=state(), progress=progress(audio_ms=100, words=[(200, "a")])),
        Resume(state=state(), progress=progress(audio_ms=100, words=[(50, "a"), (20, "b")])),
        Resume(state=state(), progress=progress(audio_ms=100, words=[(-5, "a")])),
        Resume(state=state(), progress=progress(audio_ms=100, words=[(0, "a" * 2_000)])),
        Resume(state=state(), progress=progress(audio_ms=100, words=[(0, "a")] * 9_000)),
        Resume(state=state(), progress=progress(audio_ms=100, words=[(0, "a " * 500)] * 20)),
    ],
)
async def test_a_state_that_cannot_be_is_refused(bad):
    call = await open_call(Start(resume=bad), microphone=False)
    assert call.outlet.codes == ["invalid_message"]
    assert call.outlet.reason == "failed"
    assert "resume" in call.outlet.events[0].message or "system prompt" in call.outlet.events[0].message


async def test_another_version_has_a_code_of_its_own():
    call = FakeCall()
    raw = b'{"type": "start", "resume": {"state": {"version": 99, "moods": []}, "news": 1}, "later": true}'
    await call.start(raw, microphone=False)
    assert call.outlet.codes == ["checkpoint_version"]
    assert not call.outlet.events[0].retryable
    assert call.outlet.of(Closed)


async def test_a_long_message_needs_a_state():
    messages = [ChatMessage(role="user", content=f"{index} {'word ' * 100}") for index in range(1_200)]
    call = await resumed(Resume(state=state(), history=HistoryState(messages=messages)))
    assert call.outlet.of(Connected)
    assert history(call)[-1][1].startswith("1199")
    assert len(history(call)) < 1_200
    await call.end()
    for raw in (
        encode(Start(phrases=["x" * 300_000])),
        encode(Start(phrases=["x" * 2_000_000], resume=Resume(state=state()))),
    ):
        call = await open_call(raw, microphone=False)
        assert call.outlet.codes == ["invalid_message"]


async def test_a_small_budget_keeps_the_newest():
    config = AgentConfig(context_tokens=512)
    messages = [
        message
        for index in range(200)
        for message in (
            ChatMessage(role="user", content=f"question {index}"),
            ChatMessage(role="assistant", content="yes " * 20),
        )
    ]
    call = await resumed(Resume(state=state(), history=HistoryState(messages=messages)), config=config)
    kept = history(call)
    assert kept
    assert kept[-1] == ("assistant", ("yes " * 20))
    assert all(first[0] != second[0] for first, second in pairwise(kept))


async def test_checkpoints_of_a_resumed_session_do_not_contain_the_resumption():
    call = await resumed(Resume(state=state(turns=1)), start=Start(checkpoints=True, voice="high"))
    await call.until(5 * CHUNK_MS)
    first = call.outlet.of(Checkpoint)[0]
    assert first.settings == Start(checkpoints=True, voice="high")
    assert first.state.turns == 1
