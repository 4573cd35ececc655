"""How Kubernetes scales a Deployment on a number of sessions: the rules of a HorizontalPodAutoscaler (v2).

KEDA makes such an autoscaler and answers its questions from Prometheus. Rules are applied to all cells at
once: arrays have one entry for each cell.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
_TOLERANCE = 0.1
"""Of the autoscaler: a smaller deviation from the target changes nothing."""
_UP_FACTOR, _UP_PODS = 2.0, 4
"""Its default for growing: in one period to twice the pods or by four, whichever is more."""
PERIOD_S = 15
"""Between two of its decisions."""


@dataclass(frozen=True)
class ScalingRule:
    """What the chart sets."""

    target: float
    """Sessions for each replica (``threshold``)."""
    buffer: float
    """Sessions that the query adds, of each cell: room for calls while new replicas start."""
    least: int
    """Replicas of a cell."""
    down_window_s: int = 600
    """The highest wish of this time counts for shrinking (``stabilizationWindowSeconds``)."""
    down_share: float = 0.1
    """Of the replicas that may go in a minute; at least one."""
    lag_s: int = 30
    """How old the number of sessions is: Prometheus reads it now and then."""


class Autoscaler:
    """One for each cell.

    Args:
        rule: of all of them.
        cells: how many.
    """

    def __init__(self, rule: ScalingRule, cells: int) -> None:
        self._rule = rule
        self._seen: deque[Counts] = deque(maxlen=max(1, rule.lag_s // PERIOD_S + 1))
        self._wishes: deque[Counts] = deque(maxlen=max(1, rule.down_window_s // PERIOD_S))
        self._cells = cells
        self._shrunk: deque[Counts] = deque(maxlen=60 // PERIOD_S - 1)  # younger than a minute

    def decide(self, sessions: Counts, replicas: Counts) -> Counts:
        """The replicas that each cell is to have; call it every :data:`PERIOD_S`.

        Args:
            sessions: i64 ``[cells]``, now; the autoscaler reads older ones.
            replicas: i64 ``[cells]``, that were asked for last.
        """
        rule = self._rule
        self._seen.append(sessions.copy())
        usage = self._seen[0] + rule.buffer
        wish = np.ceil(usage / rule.target).astype(np.int64)
        near = np.abs(usage / (rule.target * np.maximum(replicas, 1)) - 1) <= _TOLERANCE
        wish = np.maximum(np.where(near, replicas, wish), rule.least)
        self._wishes.append(wish)
        most = np.maximum((replicas * _UP_FACTOR).astype(np.int64), replicas + _UP_PODS)
        lasting = np.max(self._wishes, axis=0)
        gone = np.sum(self._shrunk, axis=0) if self._shrunk else np.zeros(self._cells, np.int64)
        may_go = np.maximum((rule.down_share * (replicas + gone)).astype(np.int64), 1) - gone
        fewest = replicas - np.maximum(may_go, 0)
        decided = np.where(wish > replicas, np.minimum(wish, most), np.clip(lasting, fewest, replicas))
        self._shrunk.append(np.maximum(replicas - decided, 0))
        return decided
