"""What ``make gpu-check`` finds, section by section."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from gpu_check.calls import HeldCalls


class SkippedError(Exception):
    """A section cannot run on this machine; the message says what is missing."""


@dataclass(frozen=True)
class Settings:
    """How every section runs."""

    device: torch.device
    small: bool
    """Narrow networks with all their layers, for a machine without a GPU."""
    ends_at: float
    """``time.monotonic()`` after which a section begins nothing new."""

    @property
    def seconds_left(self) -> float:
        """Until ``ends_at``; not below zero."""
        return max(0.0, self.ends_at - time.monotonic())


@dataclass(frozen=True)
class Figure:
    """One measured value."""

    name: str
    value: float
    unit: str


@dataclass(frozen=True)
class Check:
    """Something that has to be so."""

    name: str
    passed: bool
    detail: str


@dataclass
class Findings:
    """Of one section."""

    section: str
    figures: list[Figure] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    skipped: str = ""
    """Why the section, or the rest of it, did not run."""
    error: str = ""
    throughput: float | None = None
    """Units of :data:`gpu_check.calls.STAGES` in a second, of the best load that keeps up with speech."""

    def keeps_up(self, rate: float, enough: bool) -> None:
        """Note the throughput of a load, which counts if it is ``enough`` for speech in real time."""
        self.throughput = max(self.throughput or 0.0, rate if enough else 0.0)

    def measure(self, name: str, value: float, unit: str) -> None:
        """Keep a value, and print it."""
        self.figures.append(Figure(name, value, unit))
        print(f"  {name}: {value:.4g} {unit}".rstrip(), flush=True)

    def check(self, name: str, passed: bool, detail: str = "") -> None:
        """Keep whether something is as it must be, and print it."""
        self.checks.append(Check(name, passed, detail))
        print(f"  {'ok' if passed else 'FAILED'}: {name} {detail}".rstrip(), flush=True)

    @property
    def passed(self) -> bool:
        """Whether nothing failed; a section that was skipped has not failed."""
        return not self.error and all(check.passed for check in self.checks)


Section = Callable[[Settings, Findings], None]


def throughputs(found: Sequence[Findings]) -> dict[str, float]:
    """By stage, of those that were measured and did not fail."""
    return {
        findings.section: findings.throughput
        for findings in found
        if findings.throughput is not None and findings.passed
    }


def summary(machine: dict[str, str], found: Sequence[Findings], calls: HeldCalls) -> dict[str, Any]:
    """All of it, for a file."""
    return {
        "machine": machine,
        "sections": [asdict(findings) for findings in found],
        "calls": {**asdict(calls), "held": calls.held},
    }
