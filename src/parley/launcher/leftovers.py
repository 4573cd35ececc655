"""Dead instances of models that tritonserver holds until it ends, and how many it may hold.

Triton 24.10 deletes a model when no request refers to it any more. Its Python backend makes a response
factory for every request, and forgets it where the model's process ends before it has answered
(``ModelInstanceState::ProcessRequests``). The factory refers to the model. So a model that had a request when
its process ended, or got one before it was replaced, is never deleted: its threads and its region of shared
memory stay. An instance that is replaced alone is deleted without its model.
"""

from __future__ import annotations

import contextlib
import dataclasses
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

from parley.launcher.cleanup import GROWTH_BYTES, SHARED_MEMORY
from parley.launcher.restarts import SupervisorLimits
from parley.runtime.drain import ask_to_drain, cancel_drain
from parley.runtime.sessions import CONTROL_GROUPS, OWN_GROUPS, control_groups

THREADS = 40
"""Most threads of a dead instance: 32 for its calls and responses, and those of Triton's core."""


def bound_by_room(
    limits: SupervisorLimits,
    region_bytes: int,
    *,
    memory: Path = SHARED_MEMORY,
    groups: Path = CONTROL_GROUPS,
    own: Path = OWN_GROUPS,
) -> SupervisorLimits:
    """Let dead instances take at most half of the threads and of the shared memory that are free now.

    Args:
        limits: with an upper limit of dead instances.
        region_bytes: first size of an instance's region.
        memory: where the regions are.
        groups: the control groups of this machine.
        own: names those of this process.

    Returns:
        Limits with at least one dead instance.
    """
    threads = [resource.getrlimit(resource.RLIMIT_NPROC)[0]]
    for folder in control_groups(groups, own):
        with contextlib.suppress(OSError, ValueError):  # ValueError: "max"
            used = int((folder / "pids.current").read_text())
            threads.append(int((folder / "pids.max").read_text()) - used)
    most = [limits.dead_instances, shutil.disk_usage(memory).free // 2 // (region_bytes + GROWTH_BYTES)]
    most += [free // 2 // THREADS for free in threads if free != resource.RLIM_INFINITY]
    return dataclasses.replace(limits, dead_instances=max(1, min(most)))


class DeadInstances:
    """How many the running server holds, and whether it is to be replaced for them.

    Such a server still works: it is asked to drain first, its restarts have a budget of their own, and when
    that is used up it goes on as it is.
    """

    def __init__(self, limits: SupervisorLimits) -> None:
        self._limits = limits
        self.restarts = limits.attempts(limits.server_attempts)
        """The budget."""
        self.number = 0
        self._due: float | None = None
        """When the calls have had time to go on elsewhere."""
        self._drain: Path | None = None
        self._written_ns = 0

    def describe(self) -> str:
        """What the server holds."""
        return f"tritonserver holds {self.number} dead instances of models"

    def is_due(self, now: float, drain_file: Path | None, report: Callable[[str], None]) -> bool:
        """Begin to drain a server with too many, or stop that; whether it is to be replaced now."""
        is_over = self.number >= self._limits.dead_instances
        if self._due is not None and not is_over:
            self.end_drain()
        elif self._due is None and is_over:
            allowed = self.restarts.next_at(now)
            if allowed is not None and allowed <= now:
                self._due = now + self._limits.drain_s
                self._begin_drain(drain_file)
                report(f"{self.describe()}: it is started again in {self._limits.drain_s:g} s")
            return False
        return self._due is not None and now >= self._due

    def end_drain(self) -> None:
        """Let the server, or the next one, accept sessions, unless another process asked to drain since."""
        self._due = None
        if self._drain is not None:
            with contextlib.suppress(OSError):
                if self._drain.stat().st_mtime_ns == self._written_ns:
                    cancel_drain(self._drain)
            self._drain = None

    def _begin_drain(self, file: Path | None) -> None:
        if file is not None and not file.exists():
            with contextlib.suppress(OSError):  # no room for it: the calls move when the server ends
                ask_to_drain(file, self._limits.drain_s)
                self._drain, self._written_ns = file, file.stat().st_mtime_ns
