"""Questions about the conversation, beside the agent's answers."""

from __future__ import annotations

import asyncio
import re

import msgspec
import pytest
from agent_fakes import FakeCall, calls, open_call, says
from moving_client import Kept

from parley.agent.config import AgentConfig
from parley.agent.metrics import DECISIONS
from parley.checkpoint import DecidedState
from parley.errors import InferenceError
from parley.llm.messages import Priority
from parley.protocol import (
    Audio,
    Closed,
    Decision,
    DecisionQuestion,
    EndingOptions,
    ErrorEvent,
    Interrupted,
    ResponseText,
    Say,
    Start,
    Step,
    StepChanged,
    StepDecision,
    Text,
    TransferTarget,
    Transition,
    TurnMetrics,
    TurnOptions,
)

UPSET = DecisionQuestion(name="upset", question="Is the user angry?")
BYE = DecisionQuestion(name="bye", question="Does the user say goodbye?", ends=True, threshold=0.8)
DESK = TransferTarget(name="desk", to="+493012345678", warm=True)
HUMAN = DecisionQuestion(name="human", question="Is a human wanted?", transfer="desk", threshold=0.8)
TOPIC = DecisionQuestion(
    name="topic", question="What is it about?", kind="choice", options=["a bill", "a lamp"]
)
URGENT = DecisionQuestion(name="urgent", question="Is it urgent?", kind="score")
START = Start(decisions=[UPSET])
NO = [0.1, 0.9]
YES = [0.9, 0.1]


async def ask(*decided, start=START, said="hello", **options) -> FakeCall:
    """A call in which the user has typed something; ``decided`` are the probabilities by batch."""
    call = await open_call(start, **options)
    call.chat.decided += decided
    call.send(Text(text=said))
    return call


def outcomes(call) -> dict[str, float]:
    counts = call.metrics.drain().counts.items()
    return {dict(labels)["outcome"]: n for (family, labels), n in counts if family is DECISIONS and n}


async def test_answers_to_each_kind_of_question_have_their_probabilities():
    questions = [UPSET, TOPIC, URGENT]
    call = await ask([[0.75, 0.25], [0.4, 0.6], [0.1, 0.1, 0.1, 0.5, 0.2]], start=Start(decisions=questions))
    await call.end(TurnMetrics)
    assert call.outlet.of(Decision) == [
        Decision(turn=1, name="upset", value="yes", probabilities={"yes": 0.75, "no": 0.25}),
        Decision(turn=1, name="topic", value="a lamp", probabilities={"a bill": 0.4, "a lamp": 0.6}),
        Decision(
            turn=1, name="urgent", value="4", probabilities={"1": 0.1, "2": 0.1, "3": 0.1, "4": 0.5, "5": 0.2}
        ),
    ]
    (request,) = call.chat.asked
    assert [question.choices for question in request.questions] == [
        ["Yes", "No"],
        ["a bill", "a lamp"],
        ["1", "2", "3", "4", "5"],
    ]


async def test_questions_have_the_prompt_of_the_answer_and_the_lowest_priority():
    call = await ask([NO], start=Start(decisions=[UPSET], system_prompt="Be kind."), said="I am cross")
    await call.end(TurnMetrics)
    answer, (asked,) = call.chat.requests[0], call.chat.asked
    assert asked.messages == answer.messages
    assert (asked.tools, asked.cache_salt) == (answer.tools, answer.cache_salt)
    assert (asked.priority, asked.sampling.max_tokens) == (Priority.BACKGROUND, 1)


@pytest.mark.parametrize("first_s", [0.01, 2.0])
async def test_questions_begin_when_the_text_is_complete_and_the_first_audio_was_sent(first_s):
    """Whichever is the later: nothing is asked while an answer needs the language model."""
    call = FakeCall()
    call.synthesizer.first_s = first_s
    call.chat.answers.append(says("One, two, three. And then there are some more words to come."))
    call.chat.token_s = 0.1
    begun = []
    generate = call.chat.generate

    def note(request):
        if request.questions:
            begun.append([type(event) for event in call.outlet.events])
        return generate(request)

    call.chat.generate = note
    await call.start(START)
    call.send(Text(text="hello"))
    await call.wait_for(TurnMetrics)
    await call.end()
    (before,) = begun
    assert Audio in before
    assert before.count(ResponseText) == len(call.outlet.of(ResponseText))


async def test_questions_change_nothing_before_the_first_audio():
    times = []
    for start in (Start(), START):
        call = await open_call(start)
        call.send(Text(text="hello"))
        first = await call.wait_for(Audio)
        times.append(call.at_ms(first))
        assert call.chat.asked == []
        await call.end(TurnMetrics)
    assert times[0] == pytest.approx(times[1])


async def test_answers_as_text_have_decisions_too():
    call = await ask([YES], start=Start(decisions=[UPSET], output="text"))
    assert (await call.end(Decision)).value == "yes"


async def test_fixed_texts_have_no_decisions():
    call = await open_call(Start(decisions=[UPSET], greeting="Hello there."))
    await call.request(Say(text="One moment."), TurnMetrics, 2)
    await call.end()
    assert call.chat.asked == []


async def test_a_new_turn_cancels_what_is_asked():
    call = await open_call(START)
    call.chat.decision_s = 3.0
    call.send(Text(text="hello"))
    await call.wait_for(Audio)
    await asyncio.sleep(0.2)
    running = [request.request_id for request in call.chat.asked]
    call.chat.decision_s = 0.1
    call.chat.decided += [[YES]]
    await call.request(Text(text="and another thing"), Interrupted)
    await call.wait_for(TurnMetrics, 2)
    await call.end()
    assert call.chat.aborted == running
    assert [decision.turn for decision in call.outlet.of(Decision)] == [2]
    assert outcomes(call) == {"cancelled": 1, "decided": 1}


async def test_an_answer_that_is_prepared_cancels_what_is_asked():
    """The answer would have come before the turn is over, but after the prepared answer has begun."""
    call = FakeCall(hears=[(200, 1_000, "what time is it"), (2_600, 3_400, "and where am I now")])
    call.chat.decision_s = 1.9
    call.chat.decided += [[NO], [YES]]
    await call.start(Start(decisions=[UPSET], turn=TurnOptions(eagerness="normal", complete_ms=1_000)))
    decision = await call.end(Decision)
    assert call.outlet.of(TurnMetrics)[1].speculated
    assert decision.turn == 2
    assert len(call.chat.aborted) == 1


async def test_an_answer_that_is_not_prepared_cancels_nothing():
    hears = [(200, 1_000, "what time is it"), (2_600, 3_400, "and where am I now")]
    call = FakeCall(AgentConfig(speculations_per_turn=0), hears=hears)
    call.chat.decision_s = 1.9
    call.chat.decided += [[NO], [YES]]
    await call.start(Start(decisions=[UPSET], turn=TurnOptions(eagerness="normal", complete_ms=1_000)))
    await call.end(Decision, 2)
    assert [decision.turn for decision in call.outlet.of(Decision)] == [1, 2]


@pytest.mark.parametrize(
    "unusable", [[], [0.5], [float("nan"), 0.5], [-1.0, 2.0], [0.5, 0.25, 0.25], [float("inf"), 0.0]]
)
async def test_probabilities_that_are_none_leave_the_decision_out(unusable):
    start = Start(decisions=[UPSET, BYE])
    call = await ask([unusable, NO], start=start)
    await call.end(TurnMetrics)
    assert [decision.name for decision in call.outlet.of(Decision)] == ["bye"]
    assert outcomes(call) == {"unusable": 1, "decided": 1}


@pytest.mark.parametrize("failure", [InferenceError("no log probabilities"), [NO, NO], RuntimeError("bug")])
async def test_a_failure_leaves_decisions_out_and_the_call_goes_on(failure):
    call = await ask(failure)
    await call.wait_for(TurnMetrics)
    await call.end()
    assert outcomes(call) == {"failed": 1}
    assert call.outlet.of(Decision) == []
    assert call.outlet.of(ErrorEvent) == []


async def test_a_late_answer_is_given_up():
    call = await open_call(START)
    call.chat.decision_s = 60.0
    call.chat.answers.append(
        says("This is an answer that takes a while to be spoken, as long as three seconds.")
    )
    call.send(Text(text="hello"))
    await call.end(TurnMetrics)
    assert call.chat.aborted == [call.chat.asked[0].request_id]
    assert outcomes(call) == {"failed": 1}


async def test_a_decision_ends_the_call_behind_its_turn():
    call = await ask([YES], start=Start(decisions=[BYE]), said="bye then")
    closed = await call.wait_for(Closed)
    assert closed == Closed(reason="agent_ended", agent_reason="bye")
    assert len(call.outlet.of(TurnMetrics)) == 1
    await call.check_nothing_left()


async def test_a_turn_waits_for_the_decision_that_may_end_the_call():
    call = await open_call(Start(decisions=[BYE]))
    call.chat.decision_s = 1.5
    call.chat.decided += [[YES]]
    call.chat.answers.append(says("Bye!"))
    call.send(Text(text="bye"))
    assert (await call.wait_for(Closed)).reason == "agent_ended"
    await call.check_nothing_left()


async def test_a_decision_transfers_the_call():
    call = await ask([YES], start=Start(decisions=[HUMAN], ending=EndingOptions(transfers=[DESK])))
    closed = await call.wait_for(Closed)
    assert closed.reason == "transferred"
    assert closed.transfer.to == DESK.to
    assert closed.transfer.warm
    await call.check_nothing_left()


@pytest.mark.parametrize("probabilities", [[0.79, 0.21], NO])
async def test_a_probability_below_the_threshold_ends_nothing(probabilities):
    call = await ask([probabilities], start=Start(decisions=[BYE]))
    await call.end(TurnMetrics)
    assert call.outlet.reason == "ended"


async def test_a_threshold_below_a_half_counts_the_answer_that_is_waited_for():
    call = await ask(
        [[0.3, 0.7]],
        start=Start(decisions=[DecisionQuestion(name="bye", question="Bye?", ends=True, threshold=0.25)]),
    )
    assert (await call.wait_for(Closed)).reason == "agent_ended"
    assert call.outlet.of(Decision)[0].value == "no"
    await call.check_nothing_left()


async def test_a_user_who_speaks_on_is_answered_and_the_call_goes_on():
    call = FakeCall()
    call.hears((200, 1_000, "bye"), (2_500, 3_500, "wait one more thing"))
    call.chat.answers += [says("Goodbye, thank you very much for calling us today."), says("Yes?")]
    call.chat.decided += [[YES], [NO]]
    await call.start(Start(decisions=[BYE]))
    await call.wait_for(TurnMetrics, 2)
    await call.end()
    assert call.outlet.reason == "ended"


async def test_questions_of_the_end_are_asked_before_the_session_closes():
    question = DecisionQuestion(name="solved", question="Was the problem solved?", at=["end"])
    call = await ask([YES], start=Start(decisions=[question]))
    await call.wait_for(TurnMetrics)
    assert call.chat.asked == []
    await call.end()
    assert [decision.name for decision in call.outlet.of(Decision)] == ["solved"]
    assert isinstance(call.outlet.events[-1], Closed)
    assert [message.role for message in call.chat.asked[0].messages][-1] == "assistant"


async def test_questions_of_the_end_read_what_was_heard_of_the_last_answer():
    question = DecisionQuestion(name="solved", question="Was the problem solved?", at=["end"])
    long = "This is an answer that takes a while to be spoken, and the user does not hear its end."
    call = await ask([YES], start=Start(decisions=[question]), answers=[says(long)])
    await call.wait_for(Audio)
    await asyncio.sleep(1)
    await call.end()
    heard = call.chat.asked[0].messages[-1]
    assert heard.role == "assistant"
    assert heard.content.startswith("This is an answer")
    assert not heard.content.endswith("end.")
    assert [decision.name for decision in call.outlet.of(Decision)] == ["solved"]


async def test_a_call_in_which_nothing_was_said_has_no_decisions_at_its_end():
    call = await open_call(Start(decisions=[DecisionQuestion(name="a", question="b?", at=["end"])]))
    await call.end()
    assert call.chat.asked == []


@pytest.mark.parametrize(("checkpoints", "asked"), [(True, 0), (False, 1)])
async def test_a_call_that_leaves_a_stopping_server_has_not_ended(checkpoints, asked):
    question = DecisionQuestion(name="solved", question="Was the problem solved?", at=["end"])
    call = await ask([YES], start=Start(decisions=[question], checkpoints=checkpoints))
    await call.wait_for(TurnMetrics)
    call.host.drain(10.0)
    await call.end()
    assert len(call.chat.asked) == asked


async def test_a_late_decision_does_not_keep_the_session_open():
    question = DecisionQuestion(name="solved", question="Was the problem solved?", at=["end"])
    call = await ask(start=Start(decisions=[question]))
    await call.wait_for(TurnMetrics)
    call.chat.decision_s = 3_600
    await call.end()
    assert call.outlet.reason == "ended"


async def test_questions_of_a_step_are_asked_in_it_only():
    question = DecisionQuestion(name="ready", question="Is the user ready?", at=["order"])
    steps = [Step(name="greet", next=[Transition(to="order", when="the user orders")]), Step(name="order")]
    call = await ask(start=Start(decisions=[question], steps=steps))
    await call.wait_for(TurnMetrics)
    assert call.chat.asked == []
    call.chat.decided += [[YES]]
    call.chat.answers.append(calls(("go_to_step", {"step": "order"})))
    await call.request(Text(text="go on"), TurnMetrics, 2)
    await call.end()
    assert [decision.turn for decision in call.outlet.of(Decision)] == [2]


async def test_context_is_the_last_exchanges_behind_the_system_prompt():
    short = DecisionQuestion(name="now", question="Is the user angry now?", context=1)
    call = await open_call(Start(decisions=[short, UPSET], system_prompt="Be kind."))
    call.chat.decision_s = 0.02
    call.chat.decided += [[NO], [NO], [NO], [YES]]
    await call.request(Text(text="hello"), TurnMetrics)
    await call.request(Text(text="go away"), TurnMetrics, 2)
    await call.end(Decision, 4)
    whole, last = (
        [(message.role, message.content) for message in request.messages] for request in call.chat.asked[2:]
    )
    assert last == [("system", "Be kind."), ("user", "go away")]
    assert whole == [*last[:1], ("user", "hello"), ("assistant", "Okay."), *last[1:]]
    assert call.outlet.of(Decision)[-1].name == "now"


async def test_a_call_without_questions_asks_none():
    call = await ask(start=Start())
    await call.end(TurnMetrics)
    assert call.chat.asked == []


@pytest.mark.parametrize(
    ("questions", "problem"),
    [
        ([UPSET, UPSET], "two questions 'upset'"),
        (
            [DecisionQuestion(name=f"a{number}", question="b", context=number) for number in range(4)],
            "decisions: context may have 3 different values",
        ),
        ([DecisionQuestion(name="a", question="b", options=["c", "d"])], r"decisions\[0\].options: a choice"),
        ([DecisionQuestion(name="a", question="b", kind="choice")], r"decisions\[0\].options: a choice has"),
        (
            [
                DecisionQuestion(
                    name="a", question="b", kind="choice", options=["red wine", "red beer", "water"]
                )
            ],
            "first word",
        ),
        (
            [DecisionQuestion(name="a", question="b", kind="choice", options=["red", "red wine"])],
            "first word",
        ),
        ([DecisionQuestion(name="a", question="b", at=["tern"])], "no step 'tern'.*did you mean turn"),
        ([HUMAN], r"decisions\[0\].transfer: ending.transfers has no target 'desk'"),
        ([DecisionQuestion(name="a", question="b", ends=True, answer="yess")], "did you mean yes|no answer"),
    ],
)
async def test_questions_that_cannot_be_asked_are_refused(questions, problem):
    call = await open_call(Start(decisions=questions))
    (error,) = call.outlet.of(ErrorEvent)
    assert error.code == "invalid_message"
    assert re.search(problem, error.message)


async def test_a_decision_leads_to_a_step():
    way = Transition(to="calm", decision=StepDecision(name="upset", value="yes", probability=0.6))
    steps = [Step(name="talk", next=[way]), Step(name="calm")]
    call = await ask([[0.7, 0.3]], start=Start(decisions=[UPSET], steps=steps))
    changed = await call.wait_for(StepChanged, 2)
    await call.end(TurnMetrics)
    assert (changed.step, changed.previous) == ("calm", "talk")


@pytest.mark.parametrize(
    ("decision", "problem"),
    [
        (StepDecision(name="upste", value="yes"), "decision.name: no question 'upste' (did you mean upset?)"),
        (StepDecision(name="upset", value="yess"), "decision.value: no answer 'yess' (did you mean yes?)"),
    ],
)
async def test_steps_that_wait_for_no_answer_are_refused(decision, problem):
    steps = [Step(name="talk", next=[Transition(to="calm", decision=decision)]), Step(name="calm")]
    call = await open_call(Start(decisions=[UPSET], steps=steps))
    assert call.outlet.of(ErrorEvent)[0].message == f"steps[0].next[0].{problem}"


async def test_questions_of_a_turn_that_moves_are_asked_where_it_goes_on():
    call = await open_call(msgspec.structs.replace(START, checkpoints=True))
    call.chat.decision_s = 1.9
    call.chat.answers.append(says("This is an answer that takes a while to be spoken."))
    call.send(Text(text="hello"))
    await call.wait_for(Audio)
    await asyncio.sleep(0.5)
    assert len(call.chat.asked) == 1
    kept = Kept.of(call.outlet.sent)
    start = msgspec.structs.replace(kept.settings, resume=kept.resume())
    await call.end()
    moved = await open_call(start, session_id="moved")
    moved.chat.decided += [[YES]]
    decision = await moved.wait_for(Decision)
    await moved.end(TurnMetrics)
    assert (decision.turn, len(moved.chat.asked)) == (1, 1)
    state = Kept.of(moved.outlet.sent).state
    assert state.outcomes.decisions["upset"] == DecidedState(value="yes", probability=0.9, turn=1)


async def test_questions_that_read_differently_have_one_deadline():
    asked = [DecisionQuestion(name=f"q{size}", question="Is it?", context=size) for size in (0, 1, 2)]
    call = await open_call(Start(decisions=asked))
    call.chat.decision_s = 0.9
    call.chat.decided += [[NO]] * 3
    call.chat.answers.append(
        says("This is an answer that takes a while to be spoken, as long as three seconds.")
    )
    call.send(Text(text="hello"))
    await call.end(TurnMetrics)
    assert outcomes(call) == {"decided": 2, "failed": 1}


async def test_a_decision_at_the_end_begins_no_step():
    question = DecisionQuestion(name="solved", question="Was the problem solved?", at=["end"])
    way = Transition(to="praise", decision=StepDecision(name="solved", value="yes"))
    steps = [Step(name="help", instructions="Help.", next=[way]), Step(name="praise", instructions="Praise.")]
    call = await ask([YES], start=Start(decisions=[question], steps=steps))
    await call.wait_for(TurnMetrics)
    warmed = len(call.chat.warmed)
    await call.end()
    assert [decision.name for decision in call.outlet.of(Decision)] == ["solved"]
    assert [event.step for event in call.outlet.of(StepChanged)] == ["help"]
    assert len(call.chat.warmed) == warmed
