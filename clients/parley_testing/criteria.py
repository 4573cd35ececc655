"""Which criteria of its scenario a call meets; all by rules, but for those of a judge."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from parley import protocol
from parley_client.cli.turns import HARMLESS
from parley_testing.log import Act, CallLog
from parley_testing.matching import call_matches, calls_match, lacking, present
from parley_testing.scenario import Exchange
from parley_testing.scenario_file import parse_call, parse_wordings
from parley_testing.turns import Answer, CallReading, cut_off, is_answered_early, read_turns

_LOST = frozenset(("unknown", "idle", "disconnected", "shutdown", "failed"))
"""Reasons for the end of a call that are none of the agent's."""


@dataclass(frozen=True)
class Check:
    """One criterion."""

    name: str
    problem: str = ""
    """Why it is not met; empty: it is."""
    is_error: bool = False
    """Whether the agent is not to blame: the call broke, or a model or the judge failed."""


def check_call(log: CallLog) -> list[Check]:
    """Compare a call with the criteria of its scenario, but for those that need a judge."""
    reading = read_turns(log)
    checks = [_check_end(log)]
    late = {one.turn for _, one in log.events if isinstance(one, protocol.KnowledgeUsed) and one.late}
    for act in log.acts:
        is_late = any(answer.turn in late for answer in reading.answers_to(act))
        note = " (it began before the search in its documents was over)" if is_late else ""
        checks += [
            replace(check, problem=check.problem and check.problem + note)
            for check in _checks_of(reading, act)
        ]
    return [*checks, *_checks_of_call(reading)]


def reported_errors(log: CallLog) -> list[Check]:
    """What the server reported as failed, each once: perhaps why criteria are not met."""
    errors = [one for _, one in log.events if isinstance(one, protocol.ErrorEvent)]
    texts = dict.fromkeys(f"{one.code}: {one.message}" for one in errors if one.code not in HARMLESS)
    return [Check("error of the server", text, is_error=True) for text in texts]


def spoken_text(answer: Answer) -> str:
    """What was heard of an answer."""
    return answer.text if answer.interruption is None else answer.interruption[1].spoken_text


def describe(act: Act) -> str:
    """An exchange, for people."""
    exchange = act.exchange
    said = exchange.sentence.text if exchange.sentence else exchange.content or exchange.words
    return f"exchange {exchange.index + 1} ({said or exchange.kind})"


def _check_end(log: CallLog) -> Check:
    wanted = log.scenario.expect.ended_by
    by_agent = bool(log.closed) and log.closed not in _LOST
    if log.failure and not by_agent:
        return Check("the call", log.failure, is_error=True)
    left = len(log.scenario.exchanges) - len(log.acts)
    if left > 0:
        return Check("the call", f"the agent ended it ({log.closed}) with {left} exchanges to come")
    if wanted is None:
        return Check("the call")
    found = "agent" if by_agent else "caller"
    return Check(f"ended by the {wanted}", "" if found == wanted else f"ended by the {found}")


def _checks_of(reading: CallReading, act: Act) -> Iterator[Check]:
    """What is expected of one exchange."""
    exchange, name = act.exchange, describe(act)
    yield Check(f"{name}: performed", act.problem)
    if not act.staged:
        return
    answers = reading.answers_to(act)
    said = " ".join(map(spoken_text, answers)).strip()
    heard = reading.heard_text(act)
    if exchange.is_spoken:
        # A part that is taken for all of it counts only where the agent is heard over the caller.
        early = cut_off(reading, act) if is_answered_early(reading, act) else ""
        yield Check(f"{name}: heard to its end", early)
    if exchange.answered is True:
        is_answered = any(_first_s(reading.log, answer) is not None for answer in answers)
        yield Check(f"{name}: answered", "" if is_answered else f"no answer; understood as {heard!r}")
    elif exchange.answered is False:
        yield Check(f"{name}: not answered", f"answered {said!r}" if said else "")
    if exchange.heard:
        yield _lacks(f"{name}: understood", lacking(exchange.heard, heard), heard)
    if exchange.tools is not None and exchange.is_turn:
        calls = reading.calls_for(act)
        problem = "" if calls_match(exchange.tools, calls) else f"called {_written(calls)}"
        yield Check(f"{name}: calls of tools", problem)
    if exchange.answer:
        yield _lacks(f"{name}: answer", lacking(exchange.answer, said), said)
    if exchange.never:
        yield _has(f"{name}: answer without", present(exchange.never, said), said)
    if exchange.step:
        found = _step_after(reading.log, act)
        problem = "" if found == exchange.step else f"in step {found!r}"
        yield Check(f"{name}: step {exchange.step}", problem)
    yield from _decisions(exchange, answers, name)
    yield from _interruption(reading, act, name)


def _step_after(log: CallLog, act: Act) -> str:
    """The step in which the conversation was when the next exchange began, or at its end."""
    until_s = min((other.began_s for other in log.acts if other.began_s > act.began_s), default=math.inf)
    return next((step for at, step in reversed(_steps(log)) if at < until_s), "")


def _steps(log: CallLog) -> list[tuple[float, str]]:
    """The steps that began, with their times."""
    return [(at, event.step) for at, event in log.events if isinstance(event, protocol.StepChanged)]


def _decisions(exchange: Exchange, answers: Sequence[Answer], name: str) -> Iterator[Check]:
    found = {question: value for answer in answers for question, value in answer.decisions.items()}
    for question, wanted in exchange.decisions.items():
        value = found.get(question)
        problem = "" if value == wanted else f"it was {value}" if value else "nothing was decided"
        yield Check(f"{name}: {question} is {wanted}", problem)


def _interruption(reading: CallReading, act: Act, name: str) -> Iterator[Check]:
    over = next((answer for answer in reading.answers if act.over and answer.response_id == act.over), None)
    if over is None or (act.exchange.is_turn and not act.exchange.interrupts):
        return
    is_stopped = over.interruption is not None and over.interruption[0] >= act.began_s
    if act.exchange.interrupts:
        yield Check(f"{name}: interrupts", "" if is_stopped else "the answer went on")
    else:
        yield Check(f"{name}: does not interrupt", "the answer was stopped" if is_stopped else "")


def _checks_of_call(reading: CallReading) -> Iterator[Check]:
    expect, text = reading.log.scenario.expect, "\n".join(map(spoken_text, reading.answers))
    calls = [call for answer in reading.answers for _, call in answer.tools]
    rest = iter(calls)
    for written in expect.tools:
        wanted = parse_call(written)
        is_made = any(call_matches(wanted, call) for call in rest)
        yield Check(f"calls {written}", "" if is_made else f"called {_written(calls)}")
    begun = [step for _, step in _steps(reading.log)]
    left = iter(begun)
    for step in expect.steps:
        problem = "" if step in left else f"the steps were {', '.join(begun) or 'none'}"
        yield Check(f"step {step} begins", problem)
    values = {
        one.field: one.value for _, one in reading.log.events if isinstance(one, protocol.DataCollected)
    }
    for field, value in expect.collected.items():
        problem = "" if values.get(field) == value else f"it is {values.get(field, '')!r}"
        yield Check(f"{field} is {value}", problem)
    for tool in expect.not_called:
        made = [call for call in calls if call.name == tool]
        yield Check(f"never calls {tool}", f"called {_written(made)}" if made else "")
    if expect.said:
        yield _lacks("says", lacking(parse_wordings(expect.said), text), text)
    if expect.never_said:
        yield _has("never says", present(parse_wordings(expect.never_said), text), text)
    if expect.latency_ms is not None:
        yield _check_latency(reading, expect.latency_ms)
    if expect.interruptions is not None:
        count = sum(answer.interruption is not None for answer in reading.answers)
        problem = f"{count} were" if count > expect.interruptions else ""
        yield Check(f"at most {expect.interruptions} answers are interrupted", problem)


def _check_latency(reading: CallReading, most_ms: float) -> Check:
    name = f"answers within {most_ms:g} ms"
    waits = [
        (1000 * (first - act.ended_s), act)
        for answer in reading.answers
        if (first := _first_s(reading.log, answer)) is not None and (act := answer.act) is not None
    ]
    if not waits:
        return Check(name, "there was no answer")
    longest, act = max(waits, key=lambda wait: wait[0])
    return Check(name, f"{describe(act)}: {longest:.0f} ms" if longest > most_ms else "")


def _first_s(log: CallLog, answer: Answer) -> float | None:
    return answer.first_text_s if log.scenario.start.output == "text" else answer.first_sound_s


def _lacks(name: str, lost: list[str], text: str) -> Check:
    return Check(name, f"{', '.join(lost)} not in {text!r}" if lost else "")


def _has(name: str, found: list[str], text: str) -> Check:
    return Check(name, f"{', '.join(found)} in {text!r}" if found else "")


def _written(calls: Sequence[protocol.ToolRequest | protocol.ToolRun]) -> str:
    made = [f"{call.name}({', '.join(f'{k}={v!r}' for k, v in call.arguments.items())})" for call in calls]
    return ", ".join(made) or "none"
