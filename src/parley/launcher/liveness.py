"""Finding the models and processes that live but do not respond.

A model that has completed nothing for a while gets its canary. A canary that is not answered in time
counts against the model only if neither its processes nor those of the models that it calls have used a
processor, or waited for one, meanwhile: a process that hangs does neither, and one that is busy on a slow or
crowded machine does. A process with an event loop also touches a heartbeat file.

A wall clock that is set back makes a server hang that shows none of this at first (:class:`WallClock`).
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from parley.canaries.connection import CanaryAddress, CanaryConnection
from parley.canaries.models import CanaryCall, CanaryLateError
from parley.errors import ParleyError
from parley.launcher.processes import processor_demand_s
from parley.launcher.restarts import SupervisorLimits
from parley.triton.request_loop import heartbeat_path

_COUNTS_S = 3.0
WORKING = 0.05
"""Share of a processor that is used or waited for. A process that hangs needs less for its timers; one that
works needs more, and on a crowded machine it waits for most of it.
"""

_MEASURE_AFTER_S, _MEASURE_AFTER = 2.0, 0.2
"""Measuring a process is expensive; a healthy one is not measured. The second is a share of a canary's
deadline.
"""


def read_counts(address: CanaryAddress) -> dict[str, tuple[int, ...]]:
    """By model of the server at ``address``: numbers that grow whenever it completes a request.

    Raises:
        ConnectionError: the server did not answer.
    """
    try:
        with CanaryConnection(address, _COUNTS_S) as server:
            answer = server.statistics()
    except ParleyError as error:
        raise ConnectionError(str(error)) from error
    return {
        each.name: (each.inference_count, each.execution_count, each.inference_stats.success.count)
        for each in answer.model_stats
    }


@dataclass
class Liveness:
    """The signs of life of one model. Times are those of :func:`time.monotonic`."""

    alive_at: float
    """Its last completed request or answered canary."""
    asked_at: float = 0.0
    """The end of its last canary."""
    asking: bool = False
    misses: int = 0
    """Consecutive canaries missed while it did not work."""
    _completed: tuple[int, ...] = ()

    def on_counts(self, completed: tuple[int, ...], now: float) -> None:
        """Compare its numbers of completed requests with the last ones."""
        if completed != self._completed:
            self._completed = completed
            self.mark_alive(now)

    def mark_alive(self, now: float) -> None:
        """Note that the model has completed a request."""
        self.alive_at, self.misses = now, 0

    def is_quiet(self, now: float, quiet_s: float) -> bool:
        """Whether its canary is due: at once after a first miss."""
        return not self.asking and (self.misses > 0 or now - max(self.alive_at, self.asked_at) >= quiet_s)


class ProcessorDemand:
    """What some processes need of a processor from now on."""

    def __init__(self, processes: Collection[int], now: float) -> None:
        self._processes = processes
        self._began = now
        self._before_s = processor_demand_s(processes)

    def is_working(self, now: float) -> bool:
        """Whether they have used a processor since then, or waited for one."""
        return processor_demand_s(self._processes) - self._before_s >= WORKING * (now - self._began)


@dataclass(frozen=True)
class CanaryOutcome:
    """The result of a canary."""

    began: float
    """Start of the call."""
    error: str = ""
    """Empty: it was answered well."""
    working: bool = False
    """No answer came in time, but the processes have used a processor, or waited for one."""


def ask_canary(
    canary: CanaryCall,
    address: CanaryAddress,
    *,
    processes: Collection[int],
    deadline_s: float,
    wait: Callable[[float], object] = time.sleep,
) -> CanaryOutcome:
    """Call a model's canary.

    ``processes``: of the model and of those that it calls. ``wait`` may end early: then no result is needed.
    """
    began = time.monotonic()
    demands: list[ProcessorDemand] = []

    def measure() -> None:
        demands.append(ProcessorDemand(processes, time.monotonic()))

    def measure_early() -> None:
        with contextlib.suppress(Exception):  # raised when it is needed
            measure()

    later = threading.Timer(_MEASURE_AFTER * deadline_s, measure_early)
    later.daemon = True
    later.start()
    try:
        canary(address, deadline_s)
    except CanaryLateError as error:
        later.cancel()
        later.join()
        if not demands:
            # A full queue refuses at once: too soon to see whether anything works on it.
            measure()
        wait(max(0.0, began + deadline_s - time.monotonic()))
        return CanaryOutcome(began, str(error), working=demands[0].is_working(time.monotonic()))
    except Exception as error:  # noqa: BLE001 - whatever it is, the model did not answer well
        return CanaryOutcome(began, str(error) or type(error).__name__)
    finally:
        later.cancel()
    return CanaryOutcome(began)


class WallClock:
    """Notices that the wall clock was set back.

    gRPC as Triton 24.10 has it waits for its next timer until a time of the wall clock (grpc/grpc#32176). It
    goes on waiting for as long as the clock was set back, unless an earlier timer comes; streams of responses
    that need later timers hang meanwhile. Requests with one response are answered.

    Args:
        wall: reads it (seconds).
        steady: reads a clock that is never set (seconds).
    """

    def __init__(
        self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic
    ) -> None:
        self._wall = wall
        self._steady = steady
        self._ahead_s = -math.inf

    def set_back_s(self) -> float:
        """By how many seconds it was set back, at least, since the last call; 0: it was not."""
        before = self._steady()
        wall = self._wall()
        after = self._steady()  # later by as long as this thread had to wait in between
        back_s = self._ahead_s - (wall - before)
        self._ahead_s = wall - after
        return max(0.0, back_s)


class HeartbeatWatch:
    """Judges a process by its heartbeats (:mod:`parley.triton.request_loop`); one without is never silent."""

    def __init__(self, folder: Path, pid: int, limits: SupervisorLimits) -> None:
        self._path = heartbeat_path(folder, pid)
        self._pid = pid
        self._limits = limits
        self._file_ns: int | None = None
        """Modification time of the file; only a change counts, because that clock may be set."""
        self._seen_at = 0.0
        self._demand: ProcessorDemand | None = None

    def is_silent(self, now: float) -> bool:
        """Whether the process has been silent for too long; to be called several times a second."""
        try:
            file_ns = self._path.stat().st_mtime_ns
        except FileNotFoundError:
            return False
        if file_ns != self._file_ns:
            self._file_ns, self._seen_at, self._demand = file_ns, now, None
            return False
        silent_s, limits = now - self._seen_at, self._limits
        if self._demand is None:
            if silent_s >= min(_MEASURE_AFTER_S, limits.silent_s / 2):
                self._demand = ProcessorDemand([self._pid], now)
            return False
        return silent_s >= limits.working_s or (
            silent_s >= limits.silent_s and not self._demand.is_working(now)
        )
