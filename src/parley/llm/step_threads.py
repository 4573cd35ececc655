"""How many threads an engine on a CPU takes for its next step."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from parley.runtime.sessions import count_cores

LOAD = Path("/proc/loadavg")
_RESERVED = 1
"""Processors for what begins during a step: audio comes every few milliseconds."""


class StepThreads:
    """One thread for each processor that nothing else uses, up to a limit.

    The threads of a matrix operation wait for each other: where one of them shares its processor, the
    operation takes two to four times as long as with a thread less.

    Args:
        most: the limit. Under a quota of processor time (containers) half of the quota is one, too: when it
            is used up, every thread of the container stops.
        load: a file like ``/proc/loadavg``, whose fourth field begins with the number of running threads.
    """

    def __init__(self, most: int, load: Path = LOAD, cores: Callable[[], float] = count_cores) -> None:
        self._processors = len(os.sched_getaffinity(0))
        allowed = cores()
        share = self._processors - _RESERVED if allowed >= self._processors else int(allowed / 2)
        self._most = max(1, min(most, share))
        self._load = load
        self.count = 1
        """Threads of the next step."""

    def choose(self) -> None:
        """Count what runs now, right after a step; one thread where that is not known."""
        if self._most > 1:
            free = self._processors - _RESERVED - self._count_others()
            self.count = min(self._most, max(1, free))

    def _count_others(self) -> int:
        """Running threads beside those of the last step, which wait for their next work without a pause."""
        try:
            running = int(self._load.read_bytes().split()[3].partition(b"/")[0])
        except (OSError, IndexError, ValueError):
            running = 0
        # This thread is one of them: a system that says 0 does not count.
        return running - self.count if running > 0 else self._processors
