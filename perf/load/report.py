"""What a run of locust has measured: its CSV files, read again."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

NAME = "load"
"""The beginning of the names of locust's CSV files."""
_CALL = "call"
# As locust writes an exception: LostError('idle').
_ERROR = re.compile(r"(\w+)\((.*)\)$", re.DOTALL)


@dataclass(frozen=True)
class Measured:
    """One row of locust's statistics; times are milliseconds."""

    way: str
    """``grpc`` or ``websocket``."""
    name: str
    count: int
    failures: int
    p50: float
    p95: float
    p99: float
    most: float


@dataclass(frozen=True)
class Failure:
    """An error, and how often it came."""

    way: str
    name: str
    kind: str
    """The class of the exception."""
    text: str
    count: int


@dataclass(frozen=True)
class Report:
    """All of a run."""

    rows: tuple[Measured, ...]
    failures: tuple[Failure, ...]
    exceptions: tuple[str, ...]
    """Of the load's own code."""

    @property
    def calls(self) -> int:
        """That ended, in whatever way."""
        return sum(row.count for row in self.rows if row.name == _CALL)

    @property
    def lost(self) -> int:
        """Calls that broke."""
        return self._failed_calls("LostError")

    @property
    def refused(self) -> int:
        """Calls that were not accepted."""
        return self._failed_calls("RefusedError")

    def _failed_calls(self, kind: str) -> int:
        return sum(one.count for one in self.failures if (one.name, one.kind) == (_CALL, kind))

    @property
    def problem(self) -> str:
        """Why the run counts as failed; empty: it does not."""
        if self.exceptions:
            return f"the load's own code failed: {self.exceptions[0]}"
        if not self.calls:
            return "no call ended"
        if self.refused == self.calls:
            return "no call was accepted"
        return f"{self.lost} calls were lost" if self.lost else ""


def read_report(folder: Path) -> Report:
    """Read the files of a run.

    Raises:
        OSError: one is missing: locust did not get so far.
    """
    rows = tuple(_measured(line) for line in _lines(folder, "stats") if line["Name"] != "Aggregated")
    failures = tuple(_failure(line) for line in _lines(folder, "failures"))
    exceptions = tuple(line["Message"] for line in _lines(folder, "exceptions"))
    return Report(rows, failures, exceptions)


def _lines(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / f"{NAME}_{name}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _measured(line: Mapping[str, str]) -> Measured:
    return Measured(
        way=line["Type"],
        name=line["Name"],
        count=int(line["Request Count"]),
        failures=int(line["Failure Count"]),
        p50=_number(line["50%"]),
        p95=_number(line["95%"]),
        p99=_number(line["99%"]),
        most=_number(line["Max Response Time"]),
    )


def _number(text: str) -> float:
    return 0.0 if text == "N/A" else float(text)


def _failure(line: Mapping[str, str]) -> Failure:
    found = _ERROR.match(line["Error"])
    kind, text = (found[1], found[2].strip("'\"")) if found else ("", line["Error"])
    return Failure(line["Method"], line["Name"], kind, text, int(line["Occurrences"]))


def tables(report: Report) -> list[Table]:
    """For the terminal."""
    measured = Table(title="milliseconds", title_justify="left")
    for column in ("", "", "count", "failed", "p50", "p95", "p99", "most"):
        measured.add_column(column, justify="right" if column else "left")
    for row in sorted(report.rows, key=lambda one: (one.name, one.way)):
        times = (row.p50, row.p95, row.p99, row.most)
        cells = [f"{value:.0f}" if row.count > row.failures or any(times) else "" for value in times]
        measured.add_row(row.name, row.way, str(row.count), str(row.failures), *cells)
    found = [measured]
    if report.failures:
        failed = Table(title="failures", title_justify="left")
        for column in ("", "", "error", "", "count"):
            failed.add_column(column, justify="right" if column == "count" else "left")
        for one in sorted(report.failures, key=lambda one: (one.name, one.way, one.kind, one.text)):
            failed.add_row(one.name, one.way, one.kind, one.text, str(one.count))
        found.append(failed)
    return found
