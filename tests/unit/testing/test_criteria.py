"""Which criteria a call meets."""

import io
from dataclasses import replace

import pytest
from rich.console import Console
from tapes import Tape, said

from parley import protocol
from parley_testing.criteria import check_call
from parley_testing.results import Attempt, Result, print_results
from parley_testing.scenario import Criteria, ScenarioError
from parley_testing.scenario_file import parse_call


def problems(tape: Tape, **expect) -> list[str]:
    scenario = replace(tape.log.scenario, expect=Criteria(**expect))
    tape.log.scenario = replace(scenario, exchanges=tuple(act.exchange for act in tape.log.acts))
    return [f"{check.name}: {check.problem}" for check in check_call(tape.log) if check.problem]


def answered(text: str, *, exchange=None, at: float = 1.5, tools=()) -> Tape:
    """A question from 0 to 1 s that is answered at ``at``."""
    tape = Tape()
    tape.act(exchange or said("is there parking"), 0.0, 1.0)
    tape.heard("is there parking", 1.0, 1.2, 1.3)
    tape.decided(1.3, "is there parking")
    for name, arguments in tools:
        request = protocol.ToolRequest(turn=1, call_id="c", name=name, arguments=arguments)
        tape.add(at - 0.1, request)
    tape.speaks(1, at, text)
    return tape


def test_title_with_brackets_is_printed_as_it_is():
    tape = Tape()
    scenario = replace(tape.log.scenario, title="a [bold]table[/b]")
    console = Console(file=io.StringIO(), width=100)
    print_results(console, [Result(scenario, [Attempt(tape.log, [])])], 1.0)
    assert "a [bold]table[/b]" in console.file.getvalue()


def test_call_without_criteria_passes():
    assert problems(answered("Yes.")) == []


def test_texts_are_compared_as_words_or_patterns():
    tape = answered("A table at seven thirty, behind the house.")
    assert problems(tape, said=["7:30", ["garage", "/BEHIND the/"]], never_said=["17:30", "/\\bno\\b/"]) == []
    found = problems(tape, said=["garage"], never_said=["/tab.e/"])
    assert found == [
        "says: garage not in 'A table at seven thirty, behind the house.'",
        "never says: /tab.e/ in 'A table at seven thirty, behind the house.'",
    ]


def test_only_what_was_heard_of_an_interrupted_answer_was_said():
    tape = answered("Behind the house, or in the garage.")
    tape.interrupted(1, 1.8, "Behind the house,")
    found = problems(tape, said=["garage"], interruptions=0)
    assert found == [
        "says: garage not in 'Behind the house,'",
        "at most 0 answers are interrupted: 1 were",
    ]


@pytest.mark.parametrize(
    ("wanted", "is_met"),
    [
        ("book(people=4, name='Fischer')", True),
        ("book(..., people='4')", True),
        ("book(..., name=re('fis(c)?her'))", True),
        ("book(people=4)", False),
        ("book(..., people=5)", False),
        ("book(..., time='19:30')", False),
        ("book(..., name=re('fisch'))", False),
        ("cancel(...)", False),
    ],
)
def test_calls_are_compared_with_their_arguments(wanted, is_met):
    tape = answered("Done.", tools=[("book", {"people": 4, "name": "Fischer"})])
    tape.log.acts[0].exchange = replace(tape.log.acts[0].exchange, tools=None)
    assert (problems(tape, tools=[wanted]) == []) is is_met
    tape.log.acts[0].exchange = replace(tape.log.acts[0].exchange, tools=(parse_call(wanted),))
    assert (problems(tape) == []) is is_met


def test_calls_of_the_server_count_in_their_order():
    tape = answered("Done.", exchange=replace(said("is there parking"), tools=None))
    for name in ("look_up", "book"):
        run = {"call_id": name, "arguments": {}, "is_error": False, "duration_ms": 1.0}
        tape.add(1.6, protocol.ToolRun(turn=1, name=name, **run))
    assert problems(tape, tools=["look_up()", "book()"], not_called=["cancel"]) == []
    assert problems(tape, tools=["book()", "look_up()"]) == ["calls look_up(): called look_up(), book()"]
    assert problems(tape, not_called=["book"]) == ["never calls book: called book()"]


@pytest.mark.parametrize("written", ["book", "book(4)", "book(..., 4)", "book(name=re('('))", "book(name=x)"])
def test_call_that_cannot_be_read_is_refused(written):
    with pytest.raises(ScenarioError):
        parse_call(written)


def test_collected_values_are_compared_with_the_last_ones():
    tape = answered("Done.")
    for value in ("5551212", "5551213"):
        tape.add(1.0, protocol.DataCollected(field="phone", value=value))
    assert problems(tape, collected={"phone": "5551213"}) == []
    assert problems(tape, collected={"phone": "5551212"}) == ["phone is 5551212: it is '5551213'"]


def test_steps_are_compared_with_those_that_began():
    tape = answered("Done.", exchange=replace(said("is there parking"), step="book"))
    tape.add(0.0, protocol.StepChanged(step="greet"))
    tape.add(1.6, protocol.StepChanged(step="book", previous="greet"))
    tape.act(replace(said("bye"), index=1, step="done", answered="maybe"), 3.0, 3.5)
    tape.add(4.0, protocol.StepChanged(step="done", previous="book"))
    assert problems(tape, steps=["greet", "done"]) == []
    assert problems(tape, steps=["done", "book"]) == ["step book begins: the steps were greet, book, done"]
    tape.log.acts[0].exchange = replace(tape.log.acts[0].exchange, step="done")
    assert problems(tape) == ["exchange 1 (is there parking): step done: in step 'book'"]


def test_latency_is_that_of_the_slowest_answer():
    tape = answered("Yes.", at=2.4)
    assert problems(tape, latency_ms=1_500) == []
    assert problems(tape, latency_ms=1_300) == [
        "answers within 1300 ms: exchange 1 (is there parking): 1400 ms"
    ]


def test_turn_without_an_answer_says_what_was_understood():
    tape = Tape()
    tape.act(said("is there parking"), 0.0, 1.0)
    tape.heard("is there a park", 1.0, 1.2, 1.3)
    tape.decided(1.3, "is there a park")
    (problem,) = problems(tape)
    assert problem.endswith("answered: no answer; understood as 'is there a park'")
    assert problems(tape, latency_ms=1_000)[1] == "answers within 1000 ms: there was no answer"


def test_late_knowledge_is_named_where_a_criterion_of_its_turn_is_not_met():
    tape = answered("I do not know.", exchange=said("is there parking", answer=("behind",)))
    tape.add(1.4, protocol.KnowledgeUsed(turn=1, response_id="r1", sources=[], late=True))
    name = "exchange 1 (is there parking): answer"
    assert problems(tape) == [
        f"{name}: behind not in 'I do not know.' (it began before the search in its documents was over)"
    ]
    tape.log.acts[0].exchange = said("is there parking")
    assert problems(tape) == []


def test_turn_that_is_cut_off_fails_if_an_answer_is_heard_in_it():
    tape = Tape()
    tape.act(said("set a timer [900] for ten minutes"), 0.0, 3.0)
    tape.heard("set a timer", 1.0, 1.2, 1.3)
    tape.decided(1.3, "set a timer")
    assert not any("heard to its end" in problem for problem in problems(tape))
    tape.speaks(1, 1.5, "For how long?")
    assert any("heard to its end" in problem for problem in problems(tape))


def test_backchannel_must_not_stop_the_answer():
    tape = answered("Once upon a time there was a robot.")
    mhm = replace(said("mhm", "agent+300", kind="backchannel"), index=1)
    tape.act(mhm, 1.8, 2.0, over="r1", over_ms=300)
    assert problems(tape) == []
    tape.interrupted(1, 1.9, "Once upon")
    assert problems(tape) == ["exchange 2 (mhm): does not interrupt: the answer was stopped"]


@pytest.mark.parametrize(
    ("closed", "ended_by", "problem"),
    [
        ("", None, None),
        ("", "caller", None),
        ("silence", "agent", None),
        ("silence", None, None),
        ("", "agent", "ended by the agent: ended by the caller"),
        ("silence", "caller", "ended by the caller: ended by the agent"),
        ("shutdown", "agent", "the call: the server ended the call"),
    ],
)
def test_who_ends_the_call(closed, ended_by, problem):
    tape = answered("Goodbye.")
    tape.log.closed, tape.log.failure = closed, "the server ended the call" if closed else ""
    assert problems(tape, ended_by=ended_by) == ([problem] if problem else [])


def test_agent_that_ends_the_call_before_the_last_exchange_fails():
    tape = answered("Goodbye.")
    exchanges = (tape.log.acts[0].exchange, said("wait"))
    tape.log.closed = tape.log.failure = "silence"
    tape.log.scenario = replace(tape.log.scenario, exchanges=exchanges)
    (check,) = [check for check in check_call(tape.log) if check.problem]
    assert check.problem == "the agent ended it (silence) with 1 exchanges to come"


def test_decisions_are_those_of_the_answer():
    tape = answered(
        "Yes.", exchange=replace(said("is there parking"), decisions={"upset": "no", "bye": "yes"})
    )
    tape.add(1.7, protocol.Decision(turn=1, name="upset", value="yes", probabilities={"yes": 0.7, "no": 0.3}))
    name = "exchange 1 (is there parking)"
    assert problems(tape) == [f"{name}: upset is no: it was yes", f"{name}: bye is yes: nothing was decided"]
    tape.add(1.8, protocol.Decision(turn=1, name="upset", value="no", probabilities={"yes": 0.4, "no": 0.6}))
    tape.add(1.8, protocol.Decision(turn=1, name="bye", value="yes", probabilities={"yes": 0.9, "no": 0.1}))
    assert problems(tape) == []
