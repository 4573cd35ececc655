"""What grows in a soak, and what killed processes leave behind.

The samples of a resource are not independent: an allocator keeps what a busy minute has taken, for the next
ones too. Least squares would take the drift of such a series for a slope and be sure of it. So the slope is
the median of the slopes between medians of ten minutes (Theil and Sen), and its interval the one that
Kendall's statistic gives for such medians, pooled over segments that have a level of their own (Hirsch,
Slack and Smith 1982), with its exact distribution.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Sample: TypeAlias = Mapping[str, Any]
"""A record ``sample`` of the journal."""
Kill: TypeAlias = Mapping[str, Any]
"""One of :func:`soak.judgement.judge`."""

HORIZON_H = 7 * 24.0
"""Growth is extrapolated to a week without a restart, at the soak's rate of sessions."""
_WARM_S = 1200.0
"""Of a process, at least: its allocator and caches fill with its first two thousand sessions, ever more
slowly. A leak goes on at its rate, so it shows in the later half of a process's time; only that counts."""
SETTLE_S = 150.0
"""After a kill: Triton removes what was replaced when its last sequence has been idle for long enough, at
most 120 s (``max_sequence_idle_microseconds`` of ``voice_agent``). What is left then stays."""
_TRITON = "tritonserver"
_SHM = "regions of shared memory"
_LAST, _NEAREST = 40, 4  # samples
_MINUTE_S = 60.0
_GAINED_S = 180.0
"""A process that is younger has no gain: its second minute is compared with its last."""

BLOCK_S = 600.0
"""Of which one median is taken, about: longer than samples depend on each other. A shorter segment, between
two interruptions, is two blocks: its slope is one observation, and the segments are independent."""
CONFIDENCE = 0.99
"""Of the interval. Some eighty slopes are judged in one run: of 95 % intervals, four would leave out zero by
chance."""
_FEWEST = 4
"""Samples of a segment that is used."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Segment:
    """Samples of one process between two interruptions."""

    times_s: Floats
    """Shape [n], ascending."""
    values: Floats
    """Shape [n]."""


@dataclass(frozen=True)
class Slope:
    """Growth in an hour."""

    estimate: float
    low: float
    high: float
    blocks: int
    """It is made of."""
    hours: float
    """From the first to the last sample of every segment, added up."""


def fit(segments: Sequence[Segment]) -> Slope | None:
    """The slope that all segments share.

    Returns:
        None if there are too few samples for an interval.
    """
    slopes: list[Floats] = []
    chances = np.ones(1)
    blocks, hours = 0, 0.0
    for segment in segments:
        if len(segment.times_s) < _FEWEST:
            continue
        times, values = _medians(segment)
        first, second = np.triu_indices(len(times), 1)
        slopes.append((values[second] - values[first]) / (times[second] - times[first]))
        chances = np.convolve(chances, _inversions(len(times)))
        blocks += len(times)
        hours += float(segment.times_s[-1] - segment.times_s[0]) / 3600
    ordered = np.sort(np.concatenate([np.zeros(0), *slopes]))
    # So many slopes lie below the true one with a chance of less than half of what is left to error.
    below = int(np.searchsorted(np.cumsum(chances), (1 - CONFIDENCE) / 2, side="right"))
    if not below:
        return None
    low, high = float(ordered[below - 1]), float(ordered[-below])
    return Slope(float(np.median(ordered)), low, high, blocks, hours)


def _inversions(count: int) -> Floats:
    """How probable each number of pairs in the wrong order is, in a random order of ``count`` values."""
    chances = np.ones(1)
    for place in range(2, count + 1):
        chances = np.convolve(chances, np.full(place, 1 / place))
    return chances


def _medians(segment: Segment) -> tuple[Floats, Floats]:
    """Times (hours) and values of the medians of blocks of equal length: shapes [blocks]."""
    times = segment.times_s
    count = max(2, round((times[-1] - times[0]) / BLOCK_S))
    edges = np.linspace(times[0], times[-1], count + 1)
    numbers = np.clip(np.searchsorted(edges, times, side="right") - 1, 0, count - 1)
    found = [each for number in range(count) if (each := numbers == number).any()]
    return (
        np.array([times[each].mean() for each in found]) / 3600,
        np.array([np.median(segment.values[each]) for each in found]),
    )


Verdict = Literal["flat", "below", "unclear", "grows", "bounded", "too short"]


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
    gain: float | None
    """The most that one process gained from its second minute to its last; None: all were too young."""
    allowed: float
    """Growth that is allowed while the soak runs: the bound, plus what the kills may leave."""

    @property
    def at_most(self) -> float | None:
        """By which it grows until the horizon, by the upper end of the interval."""
        return None if self.slope is None else self.slope.high * HORIZON_H

    @property
    def verdict(self) -> Verdict:
        """What the interval says.

        ``flat``: it contains zero, and its upper end stays below the bound. ``below``: it leaves out zero,
        and stays below the bound. ``unclear``: it contains zero, and growth beyond the bound. ``grows``: it
        leaves out zero, and the bound may be passed; or one process gained more than it may in a week.
        ``bounded``: there is no interval, and no process did. ``too short``: there is no gain either.
        """
        if self.gain is not None and self.gain > self.allowed:
            return "grows"
        if self.slope is None or self.at_most is None:
            return "too short" if self.gain is None else "bounded"
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


def growth(samples: Sequence[Sample], began_unix_s: float, kills: int = 0) -> Iterator[Growth]:
    """Of every resource of every role.

    Args:
        samples: at least one.
        began_unix_s: when the journal's clock was 0.
        kills: how many processes may have left something in the server.
    """
    changes = _changes(samples)
    yield from _of_processes(samples, changes, began_unix_s, kills)
    life = _Life(samples[0]["at_s"], samples[-1]["at_s"])
    for name, key, quantity, unit in (("size", "kib", SHM, 1024), ("number", "regions", REGIONS, 1)):
        found = _Points()
        for sample in samples:
            value, level = sample["shared_memory"][key] / unit, _level(sample, changes)
            found.add(sample, value, life, level=level, has_slope=not _is_near(sample, changes))
        yield found.growth(_SHM, name, quantity, kills)
    for role, prefix in (("gateway", "gateway"), ("callers", "caller")):
        for name, quantity in (("tasks", TASKS), ("channels", CHANNELS)):
            found = _Points()
            for sample in samples:
                value = sample.get(f"{prefix}_{name}")
                if value is not None:
                    found.add(sample, sum(value.values()) if isinstance(value, dict) else value, life)
            yield found.growth(role, name, quantity)


def _of_processes(
    samples: Sequence[Sample],
    changes: Sequence[tuple[float, float]],
    began_unix_s: float,
    kills: int,
) -> Iterator[Growth]:
    found: dict[tuple[str, str], _Points] = collections.defaultdict(_Points)
    ended_s = {
        (use["pid"], use["started"]): sample["at_s"] for sample in samples for use in sample["processes"]
    }
    for sample in samples:
        near, level = _is_near(sample, changes), _level(sample, changes)
        for use in sample["processes"]:
            role, process = use["role"], (use["pid"], use["started"])
            # Before the first sample no process had callers.
            born_s = max(use["started"] - began_unix_s, samples[0]["at_s"])
            life = _Life(born_s, ended_s[process])
            is_triton = role == _TRITON
            for name, (key, _, unit) in _USED.items():
                found[role, name].add(
                    sample,
                    use[key] / unit,
                    life,
                    process,
                    level if is_triton else 0,
                    has_slope=not (near and is_triton),
                )
    for role in sorted({use["role"] for sample in samples for use in sample["processes"]}):
        for name, (_, quantity, _) in _USED.items():
            yield found[role, name].growth(role, name, quantity, kills if role == _TRITON else 0)


_USED: dict[str, tuple[str, Quantity, float]] = {
    "private memory": ("anonymous_kib", MEMORY, 1024),
    "shared memory": ("shared_kib", MEMORY, 1024),
    "descriptors": ("descriptors", DESCRIPTORS, 1),
    "threads": ("threads", THREADS, 1),
}
"""By name: the field of a process, what it is, and how much of it is one unit. Private is what is anonymous:
pages of files come and go with other processes that map the same files, and with the machine's room."""


@dataclass(frozen=True)
class _Life:
    """From when to when a process was seen, in seconds."""

    born_s: float
    ended_s: float

    def has_slope(self, at_s: float) -> bool:
        """Whether a slope may be made of a sample."""
        return at_s >= self.born_s + max(_WARM_S, (self.ended_s - self.born_s) / 2)

    def minute(self, at_s: float) -> str:
        """``early``, ``last`` or empty."""
        if self.ended_s - self.born_s < _GAINED_S:
            return ""
        if at_s > self.ended_s - _MINUTE_S:
            return "last"
        return "early" if self.born_s + _MINUTE_S <= at_s < self.born_s + 2 * _MINUTE_S else ""


class _Points:
    """Samples of one resource, by process and level."""

    def __init__(self) -> None:
        self._processes: set[object] = set()
        self._parts: dict[tuple[object, int], list[tuple[float, float]]] = collections.defaultdict(list)
        self._minutes: dict[tuple[object, str], list[float]] = collections.defaultdict(list)

    def add(
        self,
        sample: Sample,
        value: float,
        life: _Life,
        process: object = None,
        level: int = 0,
        *,
        has_slope: bool = True,
    ) -> None:
        self._processes.add(process)
        if has_slope and life.has_slope(sample["at_s"]):
            self._parts[process, level].append((sample["at_s"], value))
        if minute := life.minute(sample["at_s"]):
            self._minutes[process, minute].append(value)

    def growth(self, role: str, name: str, quantity: Quantity, kills: int = 0) -> Growth:
        segments = [Segment(*np.array(points, float).T) for points in self._parts.values()]
        gains = [
            float(np.median(self._minutes[process, "last"]) - np.median(self._minutes[process, "early"]))
            for process in self._processes
            if (process, "early") in self._minutes
        ]
        values = [value for points in self._parts.values() for _, value in points]
        last = values or [
            value for (_, minute), found in self._minutes.items() if minute == "last" for value in found
        ]
        return Growth(
            role,
            name,
            quantity,
            len(self._processes),
            float(np.median(last[-_LAST:])) if last else None,
            fit(segments),
            max(gains, default=None),
            quantity.bound + kills * (quantity.left_by_kills or 0),
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
    bursts = _bursts(samples, kills)
    for name, quantity, read in readers:
        steps: list[float] = []
        for number, burst in enumerate(bursts):
            if any(kill["restored_s"] is None or kill["server_replaced"] for kill in burst):
                continue
            since_s = _settled_s(bursts[number - 1]) if number else 0.0
            until_s = bursts[number + 1][0]["at_s"] if number + 1 < len(bursts) else float("inf")
            after_s = _settled_s(burst)
            before = [read(each) for each in samples if since_s <= each["at_s"] < burst[0]["at_s"]][
                -_NEAREST:
            ]
            after = [read(each) for each in samples if after_s < each["at_s"] < until_s][:_NEAREST]
            if before and after:
                step = float(np.nanmedian(after) - np.nanmedian(before)) / len(burst)
                steps += [step] * len(burst)
        if steps:
            yield Leftover(name, quantity, len(steps), float(np.median(steps)), max(steps))


def _bursts(samples: Sequence[Sample], kills: Sequence[Kill]) -> list[list[Kill]]:
    """Kills, those together between which Triton was not looked at settled: they share what they left."""
    bursts: list[list[Kill]] = []
    for kill in kills:
        if bursts and not any(_settled_s(bursts[-1]) < each["at_s"] < kill["at_s"] for each in samples):
            bursts[-1].append(kill)
        else:
            bursts.append([kill])
    return bursts


def _settled_s(burst: Sequence[Kill]) -> float:
    """When Triton has removed what these kills replaced."""
    last = burst[-1]
    return float((last["restored_s"] or last["at_s"]) + SETTLE_S)


def _reader(key: str, unit: float) -> Callable[[Sample], float]:
    def read(sample: Sample) -> float:
        uses = [use for use in sample["processes"] if use["role"] == _TRITON]
        return float(uses[0][key] / unit) if uses else float("nan")

    return read
