"""What ``make gpu-check`` finds, section by section, and how it is measured."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from parley.errors import ModelLoadingError
from parley.runtime.gpu_plan import planned_settings
from parley_torch.runtime.cuda_graphs import Capture, CudaCapture, Repetition


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

    def capture(self) -> Capture:
        """Makes graphs on a GPU, and calls that are repeated elsewhere."""
        return CudaCapture() if self.device.type == "cuda" else Repetition()

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


def wait(device: torch.device) -> None:
    """Until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(run: Callable[[], object], device: torch.device, *, rounds: int = 10) -> float:
    """Median of some runs, each waited for, after two that do not count."""
    for _ in range(2):
        run()
    taken = []
    for _ in range(rounds):
        wait(device)
        began = time.perf_counter()
        run()
        wait(device)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def once(run: Callable[[], object], device: torch.device) -> float:
    """A single run, such as the first one."""
    wait(device)
    began = time.perf_counter()
    run()
    wait(device)
    return time.perf_counter() - began


def memory_mib(device: torch.device) -> float:
    """The most that tensors have taken on a GPU since the last :func:`forget_memory`; 0 elsewhere."""
    return torch.cuda.max_memory_allocated(device) / 2**20 if device.type == "cuda" else 0.0


def memory_used_mib(device: torch.device) -> float:
    """What the whole GPU holds, contexts, graphs and other processes included; 0 elsewhere."""
    if device.type != "cuda":
        return 0.0
    free, total = torch.cuda.mem_get_info(device)
    return (total - free) / 2**20


def forget_memory(device: torch.device) -> None:
    """Begin to count anew."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
