"""Answers that an earlier session has ended, and that its client truncates in the next one."""

from __future__ import annotations

import pytest
from agent_fakes import FakeCall, calls, open_call, says
from moving_client import Kept

from parley.chat import ChatMessage, ToolCall
from parley.checkpoint import (
    CHECKPOINT_VERSION,
    HistoryState,
    Resume,
    SegmentState,
    SessionState,
    SpokenResponse,
    SpokenRound,
)
from parley.protocol import (
    MAX_RESUME_BYTES,
    Checkpoint,
    Interrupt,
    Interrupted,
    Remember,
    ResponseDone,
    Say,
    Start,
    Text,
    Tool,
    ToolRequest,
    ToolResponse,
    Truncate,
    Truncated,
    TurnMetrics,
    decode_event,
    encode,
)

STORY = "Once there was a robot. It lived by the sea. It waved at every boat."
START = Start(system_prompt="", checkpoints=True, tools=[Tool(name="get_time")])


def history(call: FakeCall) -> list[tuple[str, str]]:
    (session,) = call.host._sessions.values()
    return [(one.role, one.content) for one in session._conversation.agent_turns.history.messages]


async def begin(*answers, start: Start = START) -> FakeCall:
    call = FakeCall()
    call.chat.answers += answers
    await call.start(start)
    return call


async def ask(call: FakeCall, text: str = "a story") -> str:
    """The id of the answer, which is over."""
    count = len(call.outlet.of(TurnMetrics)) + 1
    await call.request(Text(text=text), TurnMetrics, count)
    return call.outlet.of(ResponseDone)[-1].response_id


async def go_on(call: FakeCall) -> FakeCall:
    """The session of this call, at the next server."""
    await call.end()
    kept = Kept.of(call.outlet.sent)
    following = FakeCall(session_id="next")
    await following.start(Start(system_prompt="", checkpoints=True, resume=kept.resume()))
    return following


async def truncate(call: FakeCall, response_id: str, played_ms: int) -> Truncated:
    count = len(call.outlet.of(Truncated)) + 1
    call.send(Truncate(response_id=response_id, played_ms=played_ms))
    return await call.wait_for(Truncated, count)


@pytest.mark.parametrize("played_ms", [0, 200, 900, 1_300, 10**6])
async def test_an_answer_is_truncated_as_it_would_have_been_before(played_ms):
    before = await begin(says(STORY))
    expected = await truncate(before, await ask(before), played_ms)
    remembered = history(before)
    await before.end()

    call = await begin(says(STORY))
    answer = await ask(call)
    following = await go_on(call)
    found = await truncate(following, answer, played_ms)
    assert (found.played_ms, found.spoken_text) == (expected.played_ms, expected.spoken_text)
    assert history(following) == remembered
    assert following.outlet.codes == []


async def test_an_answer_can_be_truncated_at_the_server_after_the_next():
    call = await begin(says(STORY), says("So it was."))
    first, second = await ask(call), await ask(call, "really")
    following = await go_on(await go_on(call))
    assert (await truncate(following, first, 900)).spoken_text == "Once there was a"
    assert (await truncate(following, second, 200)).spoken_text == "So"
    assert history(following) == [
        ("user", "a story"),
        ("assistant", "Once there was a…"),
        ("user", "really"),
        ("assistant", "So…"),
    ]


async def test_an_interrupted_answer_is_corrected_in_both_directions():
    call = await begin(says(STORY))
    call.send(Text(text="a story"))
    await call.until(2_000)
    cut = await call.request(Interrupt(), Interrupted)
    following = await go_on(call)
    for played_ms, heard in ((200, "Once"), (800, "Once there was a")):
        assert (await truncate(following, cut.response_id, played_ms)).spoken_text == heard
        assert history(following)[-1] == ("assistant", f"{heard}…")
    assert (await truncate(following, cut.response_id, 10**6)).played_ms < 3_000  # no more than was sent


async def test_result_of_a_tool_stays_after_truncation():
    call = await begin(calls(("get_time", {})), says("It is noon now."))
    asked = await call.request(Text(text="what time is it"), ToolRequest)
    await call.request(ToolResponse(call_id=asked.call_id, output="noon"), TurnMetrics)
    answer = call.outlet.of(ResponseDone)[-1].response_id
    following = await go_on(call)
    await truncate(following, answer, 0)
    (session,) = following.host._sessions.values()
    messages = session._conversation.agent_turns.history.messages
    assert [one.role for one in messages] == ["user", "assistant", "tool"]
    assert messages[1].tool_calls[0].name == "get_time"
    assert messages[2].content == '"noon"'


async def test_a_response_that_is_not_remembered_stays_out():
    call = await begin()
    await call.request(Say(text="Please hold the line.", remember=False), TurnMetrics)
    answer = call.outlet.of(ResponseDone)[-1].response_id
    following = await go_on(call)
    assert (await truncate(following, answer, 400)).played_ms == 400
    assert history(following) == []


async def test_responses_without_messages_or_audio_are_left_out():
    call = await begin(start=Start(system_prompt="", checkpoints=True, output="text"))
    call.send(Remember(role="user", text="hello"))
    await ask(call)
    assert Kept.of(call.outlet.sent).history.responses == []


async def test_long_answers_do_not_make_a_checkpoint_too_large():
    call = await begin()
    call.synthesizer.character_ms = 1
    long = "so it went on and on " * 150
    for count in range(1, 20):
        await call.request(Say(text=long), TurnMetrics, count)
    kept = Kept.of(call.outlet.sent).history
    assert 0 < len(kept.responses) < 16
    assert (
        len(encode(Start(resume=Resume(state=SessionState(version=0), history=kept)))) < MAX_RESUME_BYTES / 2
    )
    assert kept.responses[-1].response_id == call.outlet.of(ResponseDone)[-1].response_id


async def test_an_older_client_that_drops_the_answers_goes_on():
    call = await begin(says(STORY))
    answer = await ask(call)
    await call.end()
    kept = Kept.of(call.outlet.sent)
    kept.history = HistoryState(messages=kept.history.messages)
    following = await open_call(Start(system_prompt="", resume=kept.resume()), session_id="next")
    following.send(Truncate(response_id=answer, played_ms=0))
    await following.until(100)
    assert following.outlet.codes == ["invalid_message"]


CALL = ToolCall(id="a", name="f", arguments={})
MESSAGES = [
    ChatMessage(role="user", content="hi"),
    ChatMessage(role="assistant", tool_calls=[CALL]),
    ChatMessage(role="tool", content="1", tool_call_id="a"),
    ChatMessage(role="assistant", content="Hello."),
]
ROUNDS = [SpokenRound(called=True), SpokenRound(text="Hello.")]


def response(**fields) -> SpokenResponse:
    usual = {"response_id": "r", "audio_ms": 1_000, "begin": 1, "count": 3, "rounds": ROUNDS}
    return SpokenResponse(**{**usual, **fields})


def segment(**fields) -> SpokenResponse:
    return response(segments=[SegmentState(**{"text": "Hello.", **fields})])


async def start_with(*responses: SpokenResponse) -> FakeCall:
    resume = Resume(
        state=SessionState(version=CHECKPOINT_VERSION),
        history=HistoryState(messages=MESSAGES, responses=list(responses)),
    )
    return await open_call(Start(resume=resume), microphone=False)


async def test_a_response_that_can_be_is_taken():
    call = await start_with(segment(words=[(0, 6, 0)]))
    assert call.outlet.codes == []


@pytest.mark.parametrize(
    "bad",
    [
        response(response_id=""),
        response(audio_ms=-1),
        response(audio_ms=10**9),
        response(begin=-1),
        response(begin=5),
        response(count=-1),
        response(count=4),
        response(begin=0, count=4),
        response(count=1),
        response(begin=2, count=2, rounds=ROUNDS[1:]),
        response(rounds=ROUNDS[1:]),
        response(rounds=ROUNDS[:1] * 2),
        response(rounds=ROUNDS[1:] * 200),
        response(rounds=[ROUNDS[0], SpokenRound(text="x" * 70_000)]),
        segment(round_number=-2),
        segment(begin_ms=-1),
        segment(begin_ms=2_000),
        segment(text="x" * 70_000),
        segment(words=[(0, 1, -1)]),
        segment(words=[(-1, 1, 0)]),
        segment(words=[(0, 10**9, 0)]),
        segment(words=[(0, 1, 0)] * 9_000),
        response(segments=[SegmentState(text="b", begin_ms=500), SegmentState(text="a")]),
        response(segments=[SegmentState(text="a")] * 9_000),
    ],
)
async def test_a_response_that_cannot_be_is_refused(bad):
    call = await start_with(bad)
    assert call.outlet.codes == ["invalid_message"]
    assert call.outlet.reason == "failed"
    assert "resume.history.responses" in call.outlet.events[0].message


async def test_too_many_responses_are_refused():
    call = await start_with(*[response()] * 17)
    assert call.outlet.codes == ["invalid_message"]


async def test_a_client_passes_them_on():
    call = await begin(says(STORY))
    await ask(call)
    last = [one for one in call.outlet.of(Checkpoint) if one.history is not None][-1]
    assert decode_event(encode(last)) == last
    assert len(last.history.responses) == 1
