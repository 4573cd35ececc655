"""A fleet over time: calls come and go, replicas start late, are lost, and are given back."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet.scaling import PERIOD_S, Autoscaler, Counts, ScalingRule

STEP_S = 3
"""The autoscaler's period is a multiple of it."""
_EULER = 0.5772


@dataclass(frozen=True)
class Fleet:
    """What the fleet is made of."""

    cells: int
    """Parts with an autoscaler, gateways and servers of their own. Who is refused tries one other."""
    held: int
    """Calls that a replica takes."""
    mean_call_s: float
    """Calls have exponential lengths."""
    start_s: float
    """From the wish for a replica to its first call, where a node has to start first."""
    warm: int = 0
    """Nodes of each cell that wait for a replica."""
    warm_start_s: float = 60.0
    """The start of a replica on one of them."""
    moves: bool = True
    """Whether calls move away from a replica that goes. Otherwise it stays until the last one has ended."""
    losses_per_hour: float = 0.0
    """Replicas that are lost with everything on them, of each one in an hour."""
    price_per_hour: float = 0.0
    """Of a replica; a node that waits costs the same."""


@dataclass
class FleetResult:
    """What became of the calls."""

    asked: int = 0
    """Calls that wanted to begin."""
    refused: int = 0
    lost: int = 0
    """Calls on replicas that were lost, for which no other replica had room."""
    moved: int = 0
    """Calls that went on elsewhere, because their replica was given back or lost."""
    held_call_s: float = 0.0
    replica_s: float = 0.0
    """With replicas that start, that wait for their last call, and nodes that wait."""
    most_replicas: int = 0
    most_calls: int = 0

    @property
    def refused_share(self) -> float:
        """Of the calls that wanted to begin."""
        return self.refused / max(1, self.asked)

    def cost_per_call_minute(self, price_per_hour: float) -> float:
        """In the currency of the price."""
        return price_per_hour * self.replica_s / 3600 / max(1e-9, self.held_call_s / 60)


def simulate(fleet: Fleet, rule: ScalingRule, rate: NDArray[np.float64], seed: int) -> FleetResult:
    """Simulate in steps of :data:`STEP_S`.

    Args:
        fleet: its size is that which the beginning needs.
        rule: of the autoscalers.
        rate: calls that begin in each step, of all cells, on average: f64 ``[n]``.
        seed: of all chance.
    """
    return _Run(fleet, rule, rate, seed).run()


class _Run:
    def __init__(self, fleet: Fleet, rule: ScalingRule, rate: NDArray[np.float64], seed: int) -> None:
        self._fleet = fleet
        self._rates = rate[::STEP_S]
        self._random = np.random.default_rng(seed)
        cells = fleet.cells
        self._scaler = Autoscaler(rule, cells)
        self._calls = np.full(cells, int(rate[0] * fleet.mean_call_s / cells), np.int64)
        self._parked = np.zeros(cells, np.int64)
        """Calls on replicas that wait for their last one; no autoscaler counts them."""
        wanted = np.ceil((self._calls + rule.buffer) / rule.target).astype(np.int64)
        self._ready = np.maximum(wanted, rule.least)
        self._calls = np.minimum(self._calls, self._ready * fleet.held)
        self._wanted = self._ready.copy()
        self._warm = np.full(cells, fleet.warm, np.int64)
        # What happens later, by step: replicas that are ready, nodes that wait again, nodes given back.
        span = _steps(max(fleet.start_s, fleet.warm_start_s, self._longest_end())) + 1
        self._starting = np.zeros((span, cells), np.int64)
        self._warming = np.zeros((span, cells), np.int64)
        self._leaving = np.zeros((span, cells), np.int64)
        self.result = FleetResult()

    def _longest_end(self) -> float:
        """The time until the last of a replica's calls has ended, on average."""
        return self._fleet.mean_call_s * (math.log(max(self._fleet.held, 1)) + _EULER)

    def run(self) -> FleetResult:
        for step, rate in enumerate(self._rates):
            self._finish(step)
            self._end_calls()
            if self._fleet.losses_per_hour:
                self._lose(step)
            self._begin_calls(rate * STEP_S)
            if step * STEP_S % PERIOD_S == 0:
                self._scale(step)
            self._count()
        return self.result

    def _finish(self, step: int) -> None:
        """What was begun earlier is done now."""
        at = step % len(self._starting)
        self._ready += self._starting[at]
        self._warm += self._warming[at]
        for waiting in (self._starting, self._warming, self._leaving):
            waiting[at] = 0

    def _end_calls(self) -> None:
        share = -np.expm1(-STEP_S / self._fleet.mean_call_s)
        self._calls -= self._random.binomial(self._calls, share)
        if not self._fleet.moves:
            self._parked -= self._random.binomial(self._parked, share)

    def _lose(self, step: int) -> None:
        """Lose replicas; their calls go on elsewhere, if there is room."""
        gone = self._random.binomial(self._ready, self._fleet.losses_per_hour * STEP_S / 3600)
        if not gone.any():
            return
        theirs = self._share_of(gone)
        self._ready -= gone
        self._start(step, gone)
        room = np.maximum(self._ready * self._fleet.held - (self._calls - theirs), 0)
        kept = np.minimum(theirs, room) if self._fleet.moves else np.zeros_like(theirs)
        self._calls -= theirs - kept
        self.result.lost += int((theirs - kept).sum())
        self.result.moved += int(kept.sum())

    def _share_of(self, replicas: Counts) -> Counts:
        """The calls on some of the replicas."""
        theirs: Counts = self._calls * replicas // np.maximum(self._ready, 1)
        return theirs

    def _begin_calls(self, mean: float) -> None:
        cells = self._fleet.cells
        asking = self._random.poisson(mean / cells, cells)
        self.result.asked += int(asking.sum())
        refused = self._admit(asking)
        if refused and cells > 1:
            chosen = self._random.integers(0, cells, refused)
            refused = self._admit(np.bincount(chosen, minlength=cells))
        self.result.refused += refused

    def _admit(self, asking: Counts) -> int:
        """Begin calls where there is room; returns how many were refused."""
        room = np.maximum(self._ready * self._fleet.held - self._calls, 0)
        admitted = np.minimum(asking, room)
        self._calls += admitted
        return int((asking - admitted).sum())

    def _scale(self, step: int) -> None:
        decided = self._scaler.decide(self._calls, self._wanted)
        more = np.maximum(decided - self._wanted, 0)
        self._start(step, more)
        self._give_back(step, np.maximum(self._wanted - decided, 0))
        self._wanted = decided

    def _start(self, step: int, replicas: Counts) -> None:
        """Start replicas, on nodes that wait first; a new node then waits in their place."""
        fleet = self._fleet
        quick = np.minimum(replicas, self._warm)
        self._warm -= quick
        self._later(self._starting, step, fleet.warm_start_s, quick)
        self._later(self._starting, step, fleet.start_s, replicas - quick)
        self._later(self._warming, step, fleet.start_s, quick)

    def _give_back(self, step: int, replicas: Counts) -> None:
        """Give back replicas that are ready, as far as the others have room for their calls."""
        needed = np.maximum(-(-self._calls // self._fleet.held), 1)
        replicas = np.minimum(replicas, np.maximum(self._ready - needed, 0))
        theirs = self._share_of(replicas)
        self._ready -= replicas
        if self._fleet.moves:
            self.result.moved += int(theirs.sum())
        else:
            # They take no call any more, and are there until their last one has ended.
            self._calls -= theirs
            self._parked += theirs
            self._later(self._leaving, step, self._longest_end(), replicas)

    def _later(self, waiting: Counts, step: int, delay_s: float, count: Counts) -> None:
        waiting[(step + _steps(delay_s)) % len(waiting)] += count

    def _count(self) -> None:
        result = self.result
        # A node that starts for the place of one that waits costs nothing before it is there.
        replicas = int(self._ready.sum() + self._starting.sum() + self._leaving.sum() + self._warm.sum())
        calls = int((self._calls + self._parked).sum())
        result.held_call_s += calls * STEP_S
        result.replica_s += replicas * STEP_S
        result.most_replicas = max(result.most_replicas, replicas)
        result.most_calls = max(result.most_calls, calls)


def _steps(seconds: float) -> int:
    return max(1, round(seconds / STEP_S))
