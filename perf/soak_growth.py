"""What grows in a soak, and what killed processes leave behind."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from soak_slopes import Segment, Slope, fit

Sample: TypeAlias = Mapping[str, Any]
"""A record ``sample`` of the journal."""
Kill: TypeAlias = Mapping[str, Any]
"""One of :func:`soak_judgement.judge`."""

HORIZON_H = 7 * 24.0
"""Growth is extrapolated to a week without a restart, at the soak's rate of sessions."""
WARM_S = 1200.0
"""Of a process: its allocator and caches fill with its first two thousand sessions, ever more slowly."""
SETTLE_S = 150.0
"""After a kill: Triton removes what was replaced when its last sequence has been idle for long enough, at
most 120 s (``max_sequence_idle_microseconds`` of ``voice_agent``). What is left then stays."""
_TRITON = "tritonserver"
_SHM = "regions of shared memory"
_LAST, _NEAREST = 40, 4  # samples

Verdict = Literal["flat", "below", "unclear", "grows", "too short"]


@dataclass(frozen=True)
class Quantity:
    """Something that is used."""

    unit: str
    bound: float
    """By how much it may grow until the horizon, in this unit. A sixteenth of the limits that the compose
    file and the chart set: what grows in all processes of a container at once does not fill it."""
    left_by_kills: float | None = None
    """What a process that was killed may leave in Triton until that ends; None: nothing that counts."""


MEMORY = Quantity("MiB", 256, left_by_kills=4)  # of 4 GiB
DESCRIPTORS = Quantity("", 64, left_by_kills=8)  # of 1,024, the usual limit of a process
# Of 2,048 in the container, of which a server has 500: some forty processes may die before it is replaced.
THREADS = Quantity("", 128, left_by_kills=38)
SHM = Quantity("MiB", 64, left_by_kills=4)  # of 1 GiB
REGIONS = Quantity("", 64, left_by_kills=2)
TASKS = Quantity("", 64)  # a call of the gateway has some ten
CHANNELS = Quantity("", 8)  # the gateway has one for each server


@dataclass(frozen=True)
class Growth:
    """One resource of one role."""

    role: str
    name: str
    quantity: Quantity
    processes: int
    level: float | None
    """Median of the last ten minutes; None: there was no sample."""
    slope: Slope | None

    @property
    def at_most(self) -> float | None:
        """By which it grows until the horizon, by the upper end of the interval."""
        return None if self.slope is None else self.slope.high * HORIZON_H

    @property
    def verdict(self) -> Verdict:
        """What the interval says.

        ``flat``: it contains zero, and its upper end stays below the bound. ``below``: it leaves out zero,
        and stays below the bound. ``unclear``: it contains zero, and growth beyond the bound. ``grows``: it
        leaves out zero, and the bound may be passed. ``too short``: there is none.
        """
        if self.slope is None or self.at_most is None:
            return "too short"
        includes_zero = self.slope.low <= 0 <= self.slope.high
        if self.at_most <= self.quantity.bound:
            return "flat" if includes_zero else "below"
        return "unclear" if includes_zero else "grows"


@dataclass(frozen=True)
class Leftover:
    """What killed processes have left in Triton or in ``/dev/shm``."""

    name: str
    quantity: Quantity
    kills: int
    median: float
    most: float


def growth(samples: Sequence[Sample], began_unix_s: float, warm_s: float = WARM_S) -> Iterator[Growth]:
    """Of every resource of every role.

    Args:
        samples: at least one.
        began_unix_s: when the journal's clock was 0.
        warm_s: seconds at the beginning of each process that are left out.
    """
    changes = _changes(samples)
    yield from _of_processes(samples, changes, began_unix_s, warm_s)
    since_s = samples[0]["at_s"] + warm_s
    for name, key, quantity, unit in (("size", "kib", SHM, 1024), ("number", "regions", REGIONS, 1)):
        found = _Points()
        for sample in samples:
            if sample["at_s"] >= since_s and not _is_near(sample, changes):
                found.add(sample, sample["shared_memory"][key] / unit, _level(sample, changes))
        yield found.growth(_SHM, name, quantity)
    for role, prefix in (("gateway", "gateway"), ("callers", "caller")):
        for name, quantity in (("tasks", TASKS), ("channels", CHANNELS)):
            found = _Points()
            for sample in samples:
                value = sample.get(f"{prefix}_{name}")
                if value is not None and sample["at_s"] >= since_s:
                    found.add(sample, sum(value.values()) if isinstance(value, dict) else value)
            yield found.growth(role, name, quantity)


def _of_processes(
    samples: Sequence[Sample], changes: Sequence[tuple[float, float]], began_unix_s: float, warm_s: float
) -> Iterator[Growth]:
    found: dict[tuple[str, str], _Points] = collections.defaultdict(_Points)
    for sample in samples:
        near, level = _is_near(sample, changes), _level(sample, changes)
        for use in sample["processes"]:
            role = use["role"]
            # Before the first sample no process had callers.
            born_s = max(use["started"] - began_unix_s, samples[0]["at_s"])
            if sample["at_s"] < born_s + warm_s or (near and role == _TRITON):
                continue
            process = (use["pid"], use["started"])
            for name, (key, _, unit) in _USED.items():
                found[role, name].add(sample, use[key] / unit, process, level if role == _TRITON else 0)
    for role in sorted({use["role"] for sample in samples for use in sample["processes"]}):
        for name, (_, quantity, _) in _USED.items():
            yield found[role, name].growth(role, name, quantity)


_USED: dict[str, tuple[str, Quantity, float]] = {
    "private memory": ("anonymous_kib", MEMORY, 1024),
    "shared memory": ("shared_kib", MEMORY, 1024),
    "descriptors": ("descriptors", DESCRIPTORS, 1),
    "threads": ("threads", THREADS, 1),
}
"""By name: the field of a process, what it is, and how much of it is one unit. Private is what is anonymous:
pages of files come and go with other processes that map the same files, and with the machine's room."""


class _Points:
    """Samples of one resource, by process and level."""

    def __init__(self) -> None:
        self._parts: dict[tuple[object, int], list[tuple[float, float]]] = collections.defaultdict(list)

    def add(self, sample: Sample, value: float, process: object = None, level: int = 0) -> None:
        self._parts[process, level].append((sample["at_s"], value))

    def growth(self, role: str, name: str, quantity: Quantity) -> Growth:
        segments = [Segment(*np.array(points, float).T) for points in self._parts.values()]
        last = [value for points in self._parts.values() for _, value in points][-_LAST:]
        level = float(np.median(last)) if last else None
        return Growth(
            role, name, quantity, len({process for process, _ in self._parts}), level, fit(segments)
        )


def _changes(samples: Sequence[Sample]) -> list[tuple[float, float]]:
    """When a process ended or began: the times of the samples before and after it.

    What a process that was replaced leaves in the server is no growth, whether the soak or the supervisor
    has killed it: the server has a new level then.
    """
    found = []
    before: Sample | None = None
    for sample in samples:
        if before is not None and _processes(before) != _processes(sample):
            found.append((before["at_s"], sample["at_s"]))
        before = sample
    return found


def _processes(sample: Sample) -> set[tuple[int, float]]:
    return {(use["pid"], use["started"]) for use in sample["processes"] if "decoder " not in use["role"]}


def _level(sample: Sample, changes: Iterable[tuple[float, float]]) -> int:
    return sum(at_s <= sample["at_s"] for _, at_s in changes)


def _is_near(sample: Sample, changes: Iterable[tuple[float, float]]) -> bool:
    """Whether something is being replaced, or its remains are not all removed."""
    return any(before_s < sample["at_s"] <= at_s + SETTLE_S for before_s, at_s in changes)


def leftovers(samples: Sequence[Sample], kills: Sequence[Kill]) -> Iterator[Leftover]:
    """By how much the server has more after each kill than before, without what other kills have left."""
    readers: tuple[tuple[str, Quantity, Callable[[Sample], float]], ...] = (
        *(
            (f"{_TRITON}: {name}", quantity, _reader(key, unit))
            for name, (key, quantity, unit) in _USED.items()
        ),
        (f"{_SHM}: size", SHM, lambda sample: sample["shared_memory"]["kib"] / 1024),
        (f"{_SHM}: number", REGIONS, lambda sample: float(sample["shared_memory"]["regions"])),
    )
    for name, quantity, read in readers:
        steps = []
        for number, kill in enumerate(kills):
            if kill["restored_s"] is None or kill["server_replaced"]:
                continue
            since_s = (kills[number - 1]["restored_s"] or 0.0) + SETTLE_S if number else 0.0
            until_s = kills[number + 1]["at_s"] if number + 1 < len(kills) else float("inf")
            after_s = kill["restored_s"] + SETTLE_S
            before = [read(each) for each in samples if since_s <= each["at_s"] < kill["at_s"]][-_NEAREST:]
            after = [read(each) for each in samples if after_s < each["at_s"] < until_s][:_NEAREST]
            if before and after:
                steps.append(float(np.nanmedian(after) - np.nanmedian(before)))
        if steps:
            yield Leftover(name, quantity, len(steps), float(np.median(steps)), max(steps))


def _reader(key: str, unit: float) -> Callable[[Sample], float]:
    def read(sample: Sample) -> float:
        uses = [use for use in sample["processes"] if use["role"] == _TRITON]
        return float(uses[0][key] / unit) if uses else float("nan")

    return read
