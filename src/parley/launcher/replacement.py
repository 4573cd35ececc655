"""Replacing a server that still works: it holds too many dead instances, or its clock was set back.

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
from parley.launcher.restarts import DEAD_INSTANCES, SET_BACK, Failure, SupervisorLimits
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


class Replacement:
    """Whether a server that still works is to be replaced.

    That is no failure of it, so these restarts have a budget of their own. When it is used up, the server
    goes on as it is until the budget allows another one.
    """

    def __init__(self, limits: SupervisorLimits, report: Callable[[str], None]) -> None:
        self._limits = limits
        self._report = report
        self.attempts = limits.attempts(limits.server_attempts)
        """The budget."""
        self.dead_instances = 0
        """How many the running server holds."""
        self._set_back: Failure | None = None
        self._is_postponed = False
        self._due: float | None = None
        """When the calls have had time to go on elsewhere."""
        self._drain: Path | None = None
        self._written_ns = 0

    def on_started(self) -> None:
        """There is a new server."""
        self.dead_instances, self._set_back, self._is_postponed = 0, None, False

    def on_set_back(self, back_s: float) -> None:
        """The wall clock was set back by so many seconds."""
        detail = f"the clock was set back by {back_s:.0f} s, for which tritonserver may hang"
        self._set_back = Failure(SET_BACK, detail)

    def find(self, now: float, drain_file: Path | None) -> Failure | None:
        """Why the server is to be replaced now; of one with dead instances the calls are drained before."""
        failure = self._set_back
        if failure is None and self.dead_instances >= self._limits.dead_instances:
            detail = f"tritonserver holds {self.dead_instances} dead instances of models"
            failure = Failure(DEAD_INSTANCES, detail)
        if failure is None:
            self.end_drain()
            return None
        if self._due is None:
            allowed = self.attempts.next_at(now)
            if allowed is None and self._limits.server_attempts:
                self._postpone(failure)
                return None
            if allowed is not None and now < allowed:
                return None
            self._due = now
            if failure is not self._set_back:
                self._due += self._limits.drain_s
                self._begin_drain(drain_file)
                self._report(f"{failure.detail}: it is started again in {self._limits.drain_s:g} s")
        return failure if failure is self._set_back or now >= self._due else None

    def _postpone(self, failure: Failure) -> None:
        if not self._is_postponed:
            self._is_postponed = True
            self._report(
                f"{failure.detail}; the server was started again {self._limits.server_attempts} times within "
                f"{self._limits.window_s:g} s, and is so once more only when the first is that long ago"
            )

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
