"""States that no session has sent: they are refused, or cost no more than a session that begins."""

from __future__ import annotations

import asyncio

import pytest
from agent_fakes import FakeCall
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from virtual_loop import VirtualLoop

from parley.agent.config import AgentConfig
from parley.agent.turns import MAX_QUEUED
from parley.chat import ChatMessage, ToolCall
from parley.checkpoint import (
    CHECKPOINT_VERSION,
    AgentTurnState,
    BackgroundCall,
    CollectState,
    DecidedState,
    HistoryState,
    OutcomeState,
    QueuedText,
    ResponseProgress,
    Resume,
    RoundState,
    SegmentState,
    SessionState,
    SpokenResponse,
    SpokenRound,
    UserTurnState,
)
from parley.protocol import (
    MAX_RESUME_BYTES,
    Checkpoint,
    CollectField,
    DecisionQuestion,
    Start,
    Tool,
    encode,
)
from parley.turns.endpointing import MAX_CHARACTERS

TEXTS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(("a " * 16_000, "x" * 60_000, "twenty five, " * 2_000, ". " * 8_000, "\n" * 500, "\x00")),
)
IDS = st.sampled_from(("", "a", "b", "call-1-1", "x" * 300))
NUMBERS = st.one_of(st.integers(0, 3), st.sampled_from((-1, 2**31, 2**62, 604_800_000)))
CALLS = st.builds(
    ToolCall, id=IDS, name=st.sampled_from(("look", "other", "")), arguments=st.just({"a": [[[]]] * 50})
)
MESSAGES = st.lists(
    st.builds(
        ChatMessage,
        role=st.sampled_from(("user", "assistant", "system", "tool")),
        content=TEXTS,
        tool_calls=st.lists(CALLS, max_size=2),
        tool_call_id=st.one_of(st.none(), IDS),
    ),
    max_size=6,
)
ROUNDS = st.builds(
    RoundState,
    text=TEXTS,
    said=st.booleans(),
    calls=st.lists(CALLS, max_size=2),
    results=st.dictionaries(IDS, TEXTS, max_size=2),
)
TURNS = st.builds(
    AgentTurnState,
    turn=st.integers(0, 3),
    response_id=IDS,
    kind=st.sampled_from(("answer", "say")),
    text=TEXTS,
    interruptible=st.booleans(),
    remember=st.booleans(),
    system_prompt=st.one_of(st.none(), TEXTS),
    use_tools=st.booleans(),
    rounds=st.lists(ROUNDS, max_size=3),
)
BACKGROUND = st.lists(
    st.builds(
        BackgroundCall,
        turn=st.integers(0, 3),
        call=CALLS,
        announce=st.booleans(),
        cancel_on_interruption=st.booleans(),
        result=st.one_of(st.none(), st.sampled_from(("", '"ready"')), TEXTS),
    ),
    max_size=3,
)
VALID_BACKGROUND = st.lists(
    st.builds(
        BackgroundCall,
        turn=st.just(1),
        call=st.builds(
            ToolCall, id=st.sampled_from("abcd"), name=st.sampled_from(("look", "")), arguments=st.just({})
        ),
        announce=st.booleans(),
        result=st.sampled_from((None, "", '"ready"', "x" * 4_000)),
    ),
    max_size=3,
    unique_by=lambda one: one.call.id,
)
STATES = st.builds(
    SessionState,
    version=st.just(CHECKPOINT_VERSION),
    turns=st.integers(0, 3),
    utterances=NUMBERS,
    audio_ms=NUMBERS,
    user=st.builds(UserTurnState, text=TEXTS, digits=st.sampled_from(("", "12", "#", "x", "1" * 64))),
    agent=st.one_of(st.none(), TURNS),
    unanswered=st.booleans(),
    queued=st.lists(
        st.builds(
            QueuedText,
            kind=st.sampled_from(("say", "respond")),
            text=TEXTS,
            system_prompt=st.one_of(st.none(), TEXTS),
        ),
        max_size=3,
    )
    | st.just([QueuedText(text="a")] * (MAX_QUEUED + 1)),
    messages=MESSAGES,
    background=BACKGROUND,
    announce=st.booleans(),
    muted=st.booleans(),
    extra_pause_ms=st.just(0) | NUMBERS,
    handled=st.one_of(st.none(), NUMBERS),
    unfinished=st.lists(NUMBERS, max_size=3) | st.just([1] * 1_000),
)
PROGRESSES = st.builds(
    ResponseProgress,
    response_id=IDS,
    text=TEXTS,
    audio_ms=NUMBERS,
    words=st.lists(st.tuples(NUMBERS, TEXTS), max_size=4) | st.just([(0, "a")] * 9_000),
    played_ms=NUMBERS,
    done=st.booleans(),
)
RESPONSES = st.builds(
    SpokenResponse,
    response_id=IDS,
    audio_ms=NUMBERS,
    begin=NUMBERS,
    count=NUMBERS,
    rounds=st.lists(st.builds(SpokenRound, text=TEXTS, called=st.booleans()), max_size=2),
    segments=st.lists(
        st.builds(
            SegmentState,
            text=TEXTS,
            round_number=NUMBERS,
            begin_ms=NUMBERS,
            words=st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), max_size=2),
            complete=st.booleans(),
        ),
        max_size=2,
    ),
)
HISTORIES = st.builds(
    HistoryState, messages=MESSAGES, summary=TEXTS, responses=st.lists(RESPONSES, max_size=2)
)
RESUMES = st.builds(
    Resume,
    state=STATES,
    history=HISTORIES,
    progress=st.one_of(st.none(), PROGRESSES),
    audio_ms=NUMBERS,
)


async def go_on(resume: Resume) -> None:
    call = FakeCall(AgentConfig())
    call.synthesizer.character_ms = 1
    await call.start(Start(checkpoints=True, tools=[Tool(name="look")], resume=resume))
    if call.outlet.reason is not None:
        assert set(call.outlet.codes) == {"invalid_message"}
        await call.hang_up()
        call.send(end=True)
    else:
        await call.until(3_000)
        assert "internal_error" not in call.outlet.codes
        # As a session that begins: texts that wait have a bound, and so has what the language model gets.
        assert len(call.chat.requests) <= MAX_QUEUED + 4
        assert all(len(request.messages) < 500 for request in call.chat.requests)
        assert all(len(encode(event)) < 2 * MAX_RESUME_BYTES for event in call.outlet.of(Checkpoint))
        assert all(len(one.text) <= MAX_CHARACTERS for one in call.outlet.of(Checkpoint)[0].state.queued)
        await call.end()
    assert len(call.host) == 0


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(RESUMES)
def test_arbitrary_state_is_refused_or_costs_no_more_than_a_start(resume):
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(go_on(resume))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(RESUMES, st.data())
def test_a_state_that_is_nearly_right(resume, data):
    """The parts that refuse most states are left out."""
    state = SessionState(
        version=CHECKPOINT_VERSION,
        turns=1,
        user=UserTurnState(text=data.draw(TEXTS)[: 4 * MAX_CHARACTERS]),
        unanswered=resume.state.unanswered,
        muted=resume.state.muted,
        background=data.draw(VALID_BACKGROUND),
        announce=resume.state.announce,
        agent=data.draw(st.one_of(st.none(), st.just(AgentTurnState(turn=1, response_id="a")))),
    )
    text = data.draw(TEXTS)
    progress = ResponseProgress(response_id="a", text=text, audio_ms=60_000, words=[(0, text[:900])])
    kept = HistoryState(
        messages=[ChatMessage(role="user", content=data.draw(TEXTS))] * data.draw(st.integers(0, 9))
    )
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(go_on(Resume(state=state, history=kept, progress=progress)))


LONG = "x" * 601
ANSWER = DecidedState(value="yes", probability=0.9, turn=1)


def outcomes(**fields) -> dict:
    return {"outcomes": OutcomeState(**fields)}


def collecting(**fields) -> dict:
    return {"collecting": CollectState(**{"field": "plate", **fields})}


async def refusal(**fields) -> list[str]:
    """Codes of a session with a field and a question that goes on with a state."""
    call = FakeCall(AgentConfig())
    state = SessionState(**{"version": CHECKPOINT_VERSION, "turns": 1, **fields})
    start = Start(
        collect=[CollectField(name="plate", kind="code")],
        decisions=[DecisionQuestion(name="angry", question="Is the user angry?")],
        resume=Resume(state=state),
    )
    await call.start(start)
    await (call.hang_up() if call.outlet.reason is not None else call.end())
    return call.outlet.codes


@pytest.mark.parametrize(
    "fields",
    [
        {"call_part": -1},
        {"call_part": 1_000},
        {"call": "../../x"},
        outcomes(step="other"),
        outcomes(next_step="other"),
        outcomes(collected={"other": "B"}),
        outcomes(collected={"plate": LONG}),
        outcomes(confirmed=["other"]),
        outcomes(confirmed=["plate", "plate"]),
        outcomes(decisions={"other": ANSWER}),
        outcomes(decisions={"angry": DecidedState(value="yes", probability=1.5, turn=1)}),
        outcomes(decisions={"angry": DecidedState(value="yes", probability=0.9, turn=2)}),
        outcomes(decisions={"angry": DecidedState(value=LONG, probability=0.9, turn=1)}),
        collecting(field="other"),
        collecting(given_up=["other"]),
        collecting(value=LONG),
        collecting(one=LONG),
        collecting(other=LONG),
        collecting(place=-2),
        collecting(place=601),
        collecting(attempts=-1),
        collecting(attempts=4),
        collecting(read_backs=-1),
        collecting(read_backs=7),
        collecting(left=4),
    ],
    ids=str,
)
async def test_outcome_that_no_session_has_is_refused(fields):
    assert await refusal(**fields) == ["invalid_message"]


async def test_outcomes_of_a_session_are_accepted():
    fields = outcomes(collected={"plate": "x" * 600}, confirmed=["plate"], decisions={"angry": ANSWER})
    assert await refusal(call="20260504-120000-0123456789abcdef", call_part=999, **fields) == []
    assert await refusal(**collecting(value="AB", attempts=2, left=2, place=1)) == []
