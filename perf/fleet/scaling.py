"""How Kubernetes scales a Deployment on a number of sessions: the rules of a HorizontalPodAutoscaler (v2).

KEDA makes such an autoscaler and answers its questions from Prometheus. Rules are applied to all cells at
once: arrays have one entry for each cell. The defaults are those of the chart, which a test compares.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
_TOLERANCE = 0.1
"""Of the autoscaler: a smaller deviation from the target changes nothing."""
PERIOD_S = 15
"""Between two of its decisions, and for which its limit on growing counts."""
DOWN_PERIOD_S = 60
"""For which its limit on shrinking counts."""


@dataclass(frozen=True)
class ScalingRule:
    """What the chart sets."""

    target: float
    """Sessions for each replica (``threshold``)."""
    buffer: float
    """Sessions that the query adds, of each cell: room for calls while new replicas start."""
    least: int
    """Replicas of a cell."""
    up_percent: int = 100
    """Replicas that may come in :data:`PERIOD_S`, of those there are; or as many as the next says."""
    up_pods: int = 4
    down_window_s: int = 600
    """The highest wish of this time counts for shrinking (``stabilizationWindowSeconds``)."""
    down_percent: int = 10
    """Replicas that may go in :data:`DOWN_PERIOD_S`, of those there were; or as many as the next says."""
    down_pods: int = 1
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
        self._shrunk: deque[Counts] = deque(maxlen=DOWN_PERIOD_S // PERIOD_S - 1)  # within the last period

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
        grown = np.ceil(replicas * (100 + rule.up_percent) / 100).astype(np.int64)
        most = np.maximum(grown, replicas + rule.up_pods)
        lasting = np.max(self._wishes, axis=0)
        gone = np.sum(self._shrunk, axis=0) if self._shrunk else np.zeros(self._cells, np.int64)
        began = replicas + gone
        # Kubernetes rounds down what stays.
        left = np.minimum(began * (100 - rule.down_percent) // 100, began - rule.down_pods)
        fewest = np.minimum(left, replicas)
        decided = np.where(wish > replicas, np.minimum(wish, most), np.clip(lasting, fewest, replicas))
        self._shrunk.append(np.maximum(replicas - decided, 0))
        return decided
