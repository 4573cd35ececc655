"""What ``make gpu-check`` finds, section by section."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from parley.errors import ModelLoadingError
from parley.runtime.gpu_plan import planned_settings


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

    def measure(self, name: str, value: float, unit: str) -> None:
        """Keep a value, and print it."""
        self.figures.append(Figure(name, value, unit))
        print(f"  {name}: {value:.4g} {unit}".rstrip(), flush=True)

    def check(self, name: str, passed: bool, detail: str = "") -> None:
        """Keep whether something is as it must be, and print it."""
        self.checks.append(Check(name, passed, detail))
        print(f"  {'ok' if passed else 'FAILED'}: {name} {detail}".rstrip(), flush=True)


Section = Callable[[Settings, Findings], None]


def read_planned(model: str, device: torch.device) -> dict[str, str]:
    """A model's settings in the GPU's memory plan; none without a GPU or a plan, or where it has no place."""
    if device.type != "cuda":
        return {}
    try:
        return dict(planned_settings(model))
    except ModelLoadingError:
        return {}
