"""What callers have noticed of a disturbance, and whether that is what was promised."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from harness.caller import CallReport
from harness.judge import MOST_UNANSWERED, Check, Outcome, check_answers, is_unanswered

import parley_client.errors
import parley_gateway.errors
from cluster.session_logs import GatewayLogs
from parley.errors import ParleyError
from parley.protocol import ToolRequest
from parley_client.cli.turns import TurnReport

_WEATHER = "get_weather"
_NUMBER = re.compile(r"\d+")
_BEFORE_S, _AFTER_S = 1.0, 5.0
"""What is heard so long before and after a disturbance belongs to it."""


@dataclass
class Disturbance:
    """What was done, and to which calls."""

    began_s: float = math.nan
    """Seconds of ``perf_counter``."""
    ended_s: float = math.nan
    affected: set[str] | None = field(default_factory=set)
    """Ids of the calls that it may touch, at the server; None: all."""
    may_lose: Callable[[CallReport], bool] = lambda _: False
    """Which calls need not survive it."""
    began_at: float = -math.inf
    """Seconds of ``time.time``; a call that moved before was not moved by it."""
    most_unanswered: float = MOST_UNANSWERED
    """Of all turns, the part that may stay without an answer."""

    def covers(self, report: CallReport) -> bool:
        """Whether a call was open while it lasted."""
        return report.began_s < self.ended_s and not report.ended_s < self.began_s


def retryable_codes() -> set[str]:
    """Codes of all errors of server, gateway and client after which trying again may help."""
    assert parley_client.errors
    assert parley_gateway.errors  # imported, so that their classes exist
    found, left = set(), [ParleyError]
    while left:
        kind = left.pop()
        left += kind.__subclasses__()
        if kind.retryable:
            found.add(kind.code)
    return found


def judge(
    scenario: str,
    reports: Sequence[CallReport],
    disturbance: Disturbance,
    logs: GatewayLogs,
    degrees: Callable[[int], int],
) -> Outcome:
    """Add up what the callers have noticed, and check what always holds.

    Args:
        scenario: Its name.
        reports: Of all their calls.
        disturbance: What was done to them.
        logs: Which session was which call, and which calls have moved.
        degrees: The temperature that the tools of a caller have told.
    """
    undisturbed = [turn for report in reports for turn in report.turns if not _during(turn, disturbance)]
    outcome = Outcome.of(scenario, reports, undisturbed)
    outcome.moved = sum(bool(logs.calls_of(report.session_id) & logs.moves.keys()) for report in reports)
    outcome.figures["calls that changed their gateway"] = sum(
        one.session_id in logs.resumed for one in reports
    )
    covered = [report for report in reports if report.session_id and disturbance.covers(report)]
    affected = [report for report in covered if _is_affected(report, disturbance, logs)]
    unaffected = [report for report in covered if not _is_affected(report, disturbance, logs)]
    outcome.figures["calls touched"] = sum(bool(_touch(report, disturbance, logs)) for report in affected)
    outcome.gaps_ms = [_gap_ms(report, disturbance, outcome) for report in affected]
    survivors = [turn for one in reports if not disturbance.may_lose(one) for turn in one.turns]
    outcome.checks = [
        _check_lost(reports, disturbance),
        _check_refused(reports),
        check_answers(survivors, outcome.turns, disturbance.most_unanswered),
        _check_histories(reports),
        _check_crossed(reports, degrees),
    ]
    if disturbance.affected is not None:
        outcome.checks.append(_check_untouched(unaffected, disturbance, logs))
    return outcome


def _is_affected(report: CallReport, disturbance: Disturbance, logs: GatewayLogs) -> bool:
    affected = disturbance.affected
    return affected is None or bool(logs.calls_of(report.session_id) & affected)


def _touch(report: CallReport, disturbance: Disturbance, logs: GatewayLogs) -> str:
    """What a call has noticed; empty: nothing."""
    if report.lost:
        return f"broke: {report.lost}"
    moves = sorted(move for call in logs.calls_of(report.session_id) for move in logs.moves.get(call, []))
    if reasons := [reason for at, reason in moves if at >= disturbance.began_at]:
        return f"moved: {', '.join(reasons)}"
    if report.session_id in logs.resumed:
        return "went on at another gateway"
    return next((turn.problem or "no answer" for turn in report.turns if is_unanswered(turn)), "")


def _during(turn: TurnReport, disturbance: Disturbance) -> bool:
    begin, end = turn.speech_began_s or 0.0, turn.answered_s or math.inf
    return begin <= disturbance.ended_s + _AFTER_S and end >= disturbance.began_s - _BEFORE_S


def _gap_ms(report: CallReport, disturbance: Disturbance, outcome: Outcome) -> float:
    silences = [
        (begin_s, length_ms)
        for begin_s, length_ms in report.silences
        if begin_s <= disturbance.ended_s + _AFTER_S
        and begin_s + length_ms / 1000 >= disturbance.began_s - _BEFORE_S
    ]
    return outcome.gap_ms(silences, [turn for turn in report.turns if _during(turn, disturbance)])


def _check_lost(reports: Sequence[CallReport], disturbance: Disturbance) -> Check:
    opened = [report for report in reports if not report.refused and not disturbance.may_lose(report)]
    return Check(
        "no call was lost",
        len(opened),
        [f"{report.session_id or 'a call'}: {report.lost}" for report in opened if report.lost],
    )


def _check_refused(reports: Sequence[CallReport]) -> Check:
    """A refusal is no failure, but it has to say that trying again may help."""
    retryable = retryable_codes()
    refused = {report.refused for report in reports if report.refused}
    return Check("refused calls may try again", len(reports), sorted(refused - retryable))


def _check_histories(reports: Sequence[CallReport]) -> Check:
    ended = [report for report in reports if report.turns and not report.lost]
    problems = [
        f"{report.session_id} has no history" if report.history is None else report.history_difference()
        for report in ended
    ]
    return Check("each call's history is what was played", len(ended), [text for text in problems if text])


def _check_crossed(reports: Sequence[CallReport], degrees: Callable[[int], int]) -> Check:
    """No caller hears another one's weather, and no response is heard in two calls."""
    problems, counted = [], 0
    others = {degrees(report.number) for report in reports}
    for report in reports:
        for turn in report.turns:
            numbers = {int(number) for number in _NUMBER.findall(turn.answer)}
            if numbers and any(isinstance(one, ToolRequest) and one.name == _WEATHER for one in turn.tools):
                counted += 1
                if crossed := numbers & others - {degrees(report.number)}:
                    problems.append(f"caller {report.number} got {sorted(crossed)} degrees: {turn.answer!r}")
    seen: dict[str, int] = {}
    for index, report in enumerate(reports):
        problems += [
            f"response {one} was heard in two calls"
            for one in report.responses
            if seen.setdefault(one, index) != index
        ]
    return Check("no text of another call", counted, problems)


def _check_untouched(
    unaffected: Collection[CallReport], disturbance: Disturbance, logs: GatewayLogs
) -> Check:
    problems = [
        f"{report.session_id} {touch}"
        for report in unaffected
        if (touch := _touch(report, disturbance, logs))
    ]
    return Check("no other call was touched", len(unaffected), problems)
