"""What repeated calls of scenarios came to, on the console and as reports."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from statistics import NormalDist
from xml.etree import ElementTree as ET

from rich.console import Console
from rich.table import Table
from rich.text import Text

from parley_testing.criteria import Check, reported_errors
from parley_testing.log import CallLog, transcript
from parley_testing.scenario import Scenario

NEEDS_SPEECH = "needs --speech"
"""Why a scenario was skipped."""
_CONFIDENCE = 0.95
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
HTML_STYLE = """body { font: 15px/1.45 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto }
table { border-collapse: collapse } th, td { text-align: left; padding: .25rem .8rem .25rem 0 }
td, th { border-bottom: 1px solid #ddd } .bad { color: #b00020 } pre { white-space: pre-wrap }"""


@dataclass(frozen=True)
class Attempt:
    """One call."""

    log: CallLog
    checks: list[Check]

    @property
    def problems(self) -> list[Check]:
        """The criteria that it does not meet, and before them the errors that may be the reason."""
        found = [check for check in self.checks if check.problem]
        return sorted([*reported_errors(self.log), *found], key=lambda one: not one.is_error) if found else []

    @property
    def is_error(self) -> bool:
        """Whether an error keeps it from saying anything about the agent."""
        return any(check.is_error for check in self.problems)

    @property
    def transcript(self) -> str:
        """What happened, a line for each event; times are seconds of the call."""
        return "\n".join(f"{line.at_s:7.2f}  {line.who:>7}  {line.text}" for line in transcript(self.log))


@dataclass
class Result:
    """All calls of one scenario."""

    scenario: Scenario
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def passes(self) -> int:
        """Calls that meet all criteria."""
        return sum(not attempt.problems for attempt in self.attempts)

    @property
    def rate(self) -> float:
        """Their share, 0-1."""
        return self.passes / len(self.attempts)

    @property
    def interval(self) -> tuple[float, float]:
        """The interval of the share with a confidence of 95 %."""
        return wilson(self.passes, len(self.attempts))

    @property
    def text(self) -> str:
        """The share and its interval, for people."""
        low, high = self.interval
        return f"{self.passes} of {len(self.attempts)} ({100 * low:.0f}-{100 * high:.0f} %)"


def wilson(passes: int, count: int) -> tuple[float, float]:
    """Wilson's interval of a share, with a confidence of 95 %; 0-1."""
    z = NormalDist().inv_cdf((1 + _CONFIDENCE) / 2)
    share, scale = passes / count, 1 + z * z / count
    middle = (share + z * z / (2 * count)) / scale
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / scale
    return max(0.0, middle - half), min(1.0, middle + half)


def print_results(
    console: Console, results: Sequence[Result], least: float, skipped: Sequence[Scenario] = ()
) -> None:
    """A table of all scenarios, and the criteria that were not met."""
    for result in results:
        for number, attempt in enumerate(result.attempts, 1):
            for check in attempt.problems:
                console.print(f"{result.scenario.title} [{number}]: {check.name}", style="bold", markup=False)
                console.print(f"    {check.problem}", markup=False, highlight=False)
    table = Table("scenario", "passed (95 % interval)", "")
    for result in results:
        is_good = result.rate >= least
        table.add_row(Text(result.scenario.title), result.text, "" if is_good else "[red]FAILED[/]")
    for scenario in skipped:
        table.add_row(Text(scenario.title), "skipped", NEEDS_SPEECH)
    console.print(table)


def write_junit(path: Path, results: Sequence[Result], skipped: Sequence[Scenario] = ()) -> None:
    """Write a report for CI: a suite for each file, a case for each call and each scenario of ``skipped``."""
    root = ET.Element("testsuites", name="parley test")
    suites: dict[str, list[Result]] = {}
    for result in (*results, *map(Result, skipped)):
        suites.setdefault(str(result.scenario.file or ""), []).append(result)
    for name, members in suites.items():
        calls = sum(len(one.attempts) for one in members)
        errors = sum(attempt.is_error for one in members for attempt in one.attempts)
        failures = calls - errors - sum(one.passes for one in members)
        left_out = [_for_xml(one.scenario.title) for one in members if not one.attempts]
        counts = {"tests": calls + len(left_out), "errors": errors, "failures": failures}
        counts["skipped"] = len(left_out)
        suite = ET.SubElement(
            root, "testsuite", {"name": name, **{key: str(count) for key, count in counts.items()}}
        )
        for title in left_out:
            case = ET.SubElement(suite, "testcase", classname=Path(name).stem, name=title, time="0")
            ET.SubElement(case, "skipped", message=NEEDS_SPEECH)
        for result in members:
            for number, attempt in enumerate(result.attempts, 1):
                title = _for_xml(f"{result.scenario.title} [{number}]")
                seconds = f"{attempt.log.ended_s:.3f}"
                case = ET.SubElement(suite, "testcase", classname=Path(name).stem, name=title, time=seconds)
                if attempt.problems:
                    texts = [f"{check.name}: {check.problem}" for check in attempt.problems]
                    kind = "error" if attempt.is_error else "failure"
                    failure = ET.SubElement(case, kind, message=_for_xml(texts[0]))
                    failure.text = _for_xml("\n".join(texts))
                ET.SubElement(case, "system-out").text = _for_xml(attempt.transcript)
    path.parent.mkdir(parents=True, exist_ok=True)
    ET.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def _for_xml(text: str) -> str:
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)


def write_html(path: Path, title: str, results: Sequence[Result], skipped: Sequence[Scenario] = ()) -> None:
    """Write a report as one file that needs nothing else."""
    lines = [(one.scenario.title, one.text) for one in results]
    lines += [(one.title, f"skipped: {NEEDS_SPEECH}") for one in skipped]
    rows = "".join(f"<tr><td>{escape(name)}</td><td>{escape(text)}</td></tr>" for name, text in lines)
    calls = "".join(
        _call_html(result, number, attempt)
        for result in results
        for number, attempt in enumerate(result.attempts, 1)
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{HTML_STYLE}</style>\n<h1>{escape(title)}</h1>\n"
        f"<table><tr><th>Scenario</th><th>Passed (95 % interval)</th></tr>{rows}</table>\n{calls}</html>\n",
        "utf-8",
    )


def _call_html(result: Result, number: int, attempt: Attempt) -> str:
    checks = [f'<li class="bad">{escape(one.name)}: {escape(one.problem)}</li>' for one in attempt.problems]
    checks += [f"<li>{escape(one.name)}</li>" for one in attempt.checks if not one.problem]
    state = "" if not attempt.problems else ' class="bad"'
    return (
        f"<h2{state}>{escape(result.scenario.title)} [{number}]</h2>\n<ul>{''.join(checks)}</ul>\n"
        f"<pre>{escape(attempt.transcript)}</pre>\n"
    )
