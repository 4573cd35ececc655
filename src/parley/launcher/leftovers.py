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
from pathlib import Path

from parley.launcher.cleanup import GROWTH_BYTES, SHARED_MEMORY
from parley.launcher.restarts import SupervisorLimits
from parley.runtime.drain import ask_to_drain, cancel_drain
from parley.runtime.sessions import CONTROL_GROUPS, OWN_GROUPS, control_groups

THREADS = 40
"""Of a dead instance, at most: 32 for its calls and responses, and those of Triton's core."""


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


class Drain:
    """Asks a server to drain until it is replaced, unless it was asked to already."""

    def __init__(self) -> None:
        self._file: Path | None = None

    def begin(self, file: Path | None, deadline_s: float) -> None:
        """Ask with the server's file; None: it cannot be drained."""
        if file is not None and not file.exists():
            with contextlib.suppress(OSError):  # no room for it: the calls move when the server ends
                ask_to_drain(file, deadline_s)
                self._file = file

    def end(self) -> None:
        """Let the next server accept sessions."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                cancel_drain(self._file)
            self._file = None
