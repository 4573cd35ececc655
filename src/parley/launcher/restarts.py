"""Reasons for restarts, limits of the supervisor, and the record of restarts."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from parley.runtime.attempts import WAITS_S, WINDOW_S, Attempts

DIED = "died"
STOPPED = "stopped"
"""A process was stopped by a signal (SIGSTOP), and killed for it."""
UNRESPONSIVE = "unresponsive"
"""A model did not answer its canary, or the server did not answer at all."""
SET_BACK = "clock_set_back"
"""The wall clock was set back, and Triton's gRPC may hang for as long."""
NOT_RESTORED = "model_not_restored"
"""A server was replaced because one of its models could not be."""
DEAD_INSTANCES = "dead_instances"
"""Replaced models have left so much in the server that it may run out of threads or shared memory."""
PROCESS_REASONS = (DIED, STOPPED, UNRESPONSIVE)
SERVER_REASONS = (*PROCESS_REASONS, SET_BACK, NOT_RESTORED, DEAD_INSTANCES)
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Failure:
    """Why a process, an instance or the server is replaced."""

    reason: str
    """One of :data:`SERVER_REASONS`."""
    detail: str
    """For the operator."""


@dataclass(frozen=True, kw_only=True)
class SupervisorLimits:
    """When the supervisor acts."""

    look_s: float = 0.2
    """Interval between two checks of the processes."""
    stopped_s: float = 2.0
    """Longest time for which tritonserver may be stopped."""
    model_stopped_s: float = 0.5
    """Longest time for which a model's process may be stopped. Triton gives up one that shows no sign of life
    for a second, and frees the memory of its request; where it goes on after that, the server ends.
    """
    quiet_s: float = 3.0
    """A model that has completed nothing for this long gets its canary."""
    canary_s: float = 2.5
    """Deadline of a canary. A model is unresponsive when it misses two in a row."""
    silent_s: float = 8.0
    """Longest time for which an event loop with heartbeats may stand still."""
    working_s: float = 60.0
    """Longest time without a completed request for a model whose process uses its processor."""
    reload_canary_s: float = 20.0
    """Deadline of the canary of a model that was just loaded."""
    set_back_s: float = 10.0
    """When the wall clock is set back by more at once, there is a new server: waiting would take longer."""
    server_failures: int = 3
    """A server that does not answer this many requests in a row is unresponsive."""
    waits_s: tuple[float, ...] = WAITS_S
    """Between attempts; see :class:`parley.runtime.attempts.Attempts`."""
    window_s: float = WINDOW_S
    """Attempts count for this long."""
    model_attempts: int = 5
    """One more within the window costs a new server."""
    server_attempts: int = 3
    """After one more within the window the server is given up. Restarts of a server that still works have a
    budget of the same size (:mod:`parley.launcher.replacement`).
    """
    dead_instances: int = 100
    """A server that holds this many, each with some 35 threads and a region of shared memory, is replaced."""
    drain_s: float = 20.0
    """Time for the calls of such a server to go on elsewhere."""

    def attempts(self, most: int) -> Attempts:
        """A budget of ``most`` attempts within the window."""
        return Attempts(most, waits_s=self.waits_s, window_s=self.window_s)


@dataclass
class Restart:
    """The last restart of a model or the server; times in seconds since the epoch."""

    reason: str
    detail: str
    noticed: float
    answered: float | None = None
    """None: not yet."""


@dataclass
class RestartRecord:
    """State and restarts of a model or the server."""

    state: str = "serving"
    """``serving`` or ``restarting``; of the server also ``failed`` (given up) and ``stopped``."""
    restarts: dict[str, int] = field(default_factory=dict)
    """By reason."""
    last: Restart | None = None
    _noticed_s: float = 0.0
    """When the last one was noticed, by a clock that is never set; not written."""

    def on_failure(self, failure: Failure) -> None:
        """A restart begins."""
        self.state = "restarting"
        self.restarts[failure.reason] = self.restarts.get(failure.reason, 0) + 1
        self.last = Restart(failure.reason, failure.detail, time.time())
        self._noticed_s = time.monotonic()

    def on_restored(self) -> float:
        """The restart is complete; returns the seconds since the failure was noticed."""
        self.state = "serving"
        if self.last is None:
            return 0.0
        self.last.answered = time.time()
        return time.monotonic() - self._noticed_s

    def to_json(self) -> dict[str, Any]:
        """What is written of it."""
        return {name: value for name, value in asdict(self).items() if not name.startswith("_")}


class RestartRecords:
    """The records of the server and its models, in a JSON file that is rewritten at every change."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_missing = False
        self.server = RestartRecord()
        self.models: dict[str, RestartRecord] = {}

    def on_served(self, models: Collection[str]) -> None:
        """A server with these models serves."""
        self.models |= {name: RestartRecord() for name in models if name not in self.models}
        for record in self.models.values():
            record.state = "serving"

    def counts(self) -> dict[str, dict[str, int]]:
        """By model, and under an empty name for the server: restarts by reason."""
        return {"": dict(self.server.restarts)} | {
            name: dict(record.restarts) for name, record in self.models.items()
        }

    def write(self) -> None:
        """Write the whole file; :meth:`write_missing` repeats it where that fails, as on a full disk."""
        models = {name: record.to_json() for name, record in sorted(self.models.items())}
        content = {"server": self.server.to_json(), "models": models}
        draft = self._path.with_suffix(".new")
        try:
            draft.write_text(json.dumps(content, indent=2) + "\n")
            draft.replace(self._path)
        except OSError as error:
            if not self._is_missing:
                _log.warning("the record of restarts was not written: %s", error)
            self._is_missing = True
        else:
            self._is_missing = False

    def write_missing(self) -> None:
        """Write the file if the last change is not in it."""
        if self._is_missing:
            self.write()
