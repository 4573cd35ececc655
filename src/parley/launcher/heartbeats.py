"""Finding the processes whose event loop stands still."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from parley.launcher.canary import WORKING
from parley.launcher.processes import processor_s
from parley.triton.request_loop import heartbeat_path

_MEASURE_AFTER_S = 2.0
"""To measure what a process uses is expensive; it is not done for one that is well."""


@dataclass
class _Beat:
    """The last sign of one process. Times are the supervisor's."""

    file_ns: int
    """When the file was touched; only whether it changes counts, because that clock may be set."""
    seen_at: float
    used_s: float = 0.0
    """Processor time that it had used at :attr:`measured_at`."""
    measured_at: float | None = None


class Heartbeats:
    """Judges the processes that give signs (:mod:`parley.triton.request_loop`); others are never silent.

    Args:
        silent_s: a process that uses less than 5 % of a processor may be silent for so long (seconds).
        working_s: one that uses more, for so long (seconds).
    """

    def __init__(self, silent_s: float, working_s: float) -> None:
        self._silent_s = silent_s
        self._working_s = working_s
        self._beats: dict[int, _Beat] = {}

    def is_silent(self, folder: Path, pid: int, now: float) -> bool:
        """Whether a process has been silent for too long; to be asked several times a second."""
        try:
            file_ns = heartbeat_path(folder, pid).stat().st_mtime_ns
        except FileNotFoundError:
            return False
        beat = self._beats.get(pid)
        if beat is None or beat.file_ns != file_ns:
            self._beats[pid] = _Beat(file_ns, now)
            return False
        silent_s = now - beat.seen_at
        if beat.measured_at is None:
            if silent_s >= min(_MEASURE_AFTER_S, self._silent_s / 2):
                beat.measured_at, beat.used_s = now, processor_s([pid])
            return False
        if silent_s < self._silent_s:
            return False
        is_working = processor_s([pid]) - beat.used_s >= WORKING * (now - beat.measured_at)
        return silent_s >= self._working_s or not is_working

    def forget(self, pid: int) -> None:
        """The process has ended."""
        self._beats.pop(pid, None)
