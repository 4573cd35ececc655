"""Whether a server has room for one more call, by how soon it answered lately with as many open.

The instances of the agent share the processors, so they share what they have measured: a small file in the
server's temporary folder, which goes with it, with a row of each.
"""

from __future__ import annotations

import errno
import logging
import math
import mmap
import os
import stat
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from parley.errors import TooManySessionsError

WINDOW_S = 300.0
"""How long an answer counts. What was too many calls is tried again after that."""
FEWEST = 20
"""Answers without which a 95th percentile is not known."""
_KEPT = 64
"""Answers of an instance."""
_MOST_INSTANCES = 16
_SHARE, _DOUBTS = 0.05, 1.28
"""A share of slow answers is above 5 % if it exceeds that by so many standard deviations."""
_LEAST_RETRY_S = 1.0
_ANSWER = np.dtype([("at", "f8"), ("ms", "f8"), ("calls", "i8")])
_ROW = np.dtype([("used", "i8"), ("open", "i8"), ("count", "i8"), ("answers", _ANSWER, _KEPT)])
_log = logging.getLogger(__name__)


class CallBoard:
    """Open calls and recent answers of all instances of a server; each writes its own row.

    Args:
        path: of the file that they share; None: this is the only instance.
        instance: number of this one.

    Raises:
        OSError: the file cannot be made.
    """

    def __init__(self, path: Path | None = None, instance: int = 0) -> None:
        self._path = path
        self._rows = np.zeros(_MOST_INSTANCES, _ROW) if path is None else _map(path)
        self._row = self._rows[instance : instance + 1]
        self._row[:] = np.zeros(1, _ROW)
        self._row["used"] = 1

    def add(self, ms: float, now: float) -> None:
        """Note an answer of this instance."""
        place = int(self._row["count"][0]) % _KEPT
        self._row["answers"][0, place] = (now, ms, self.open)
        self._row["count"] += 1

    def set_open(self, calls: int) -> None:
        """Note how many calls this instance has."""
        self._row["open"] = calls

    @property
    def open(self) -> int:
        """Calls of all instances."""
        return int(self._rows["open"].sum())

    @property
    def instances(self) -> int:
        """How many there are."""
        return int(self._rows["used"].sum())

    def answers(self, since: float) -> NDArray[np.void]:
        """Those of all instances, in any order: ``at``, ``ms``, and ``calls`` that were open then."""
        all_of_them = self._rows["answers"].reshape(-1)
        return all_of_them[all_of_them["at"] > since]

    def close(self) -> None:
        """Leave; the last one takes the file away."""
        self._row[:] = np.zeros(1, _ROW)
        if self._path is not None and not self.instances:
            with suppress(OSError):
                self._path.unlink()


def _map(path: Path) -> NDArray[np.void]:
    """The rows in the file, which this makes if it is not there."""
    size = _MOST_INSTANCES * _ROW.itemsize
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or not stat.S_ISREG(found.st_mode):
            raise PermissionError(errno.EPERM, "it is another user's", str(path))
        os.ftruncate(descriptor, size)
        return np.frombuffer(mmap.mmap(descriptor, size), _ROW)
    finally:
        os.close(descriptor)


def open_board(instance: str) -> CallBoard:
    """The board of the server that has started this process, for an instance such as ``voice_agent_0_1``."""
    parts, numbers = instance.split("_"), []
    while len(parts) > 1 and parts[-1].isdecimal():
        numbers.append(int(parts.pop()))
    # Its group's number and its own: either groups have one instance each, or there is one group.
    number = sum(numbers)
    if not numbers or number >= _MOST_INSTANCES:
        return CallBoard()
    path = Path(tempfile.gettempdir()) / f"parley-{'_'.join(parts)}-{os.getppid()}"
    try:
        return CallBoard(path, number)
    except OSError:
        _log.warning("%s cannot be used: each instance counts its own calls", path, exc_info=True)
        return CallBoard()


class Headroom:
    """Refuses calls that a server is not known to answer in time.

    Args:
        p95_ms: from the end of the user's speech to the first audio; None: no limit.
        most: calls of all instances; 0: no limit.
        typical_call_s: how long calls last.
    """

    def __init__(
        self,
        board: CallBoard,
        *,
        p95_ms: float | None,
        most: int,
        typical_call_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._board = board
        self._p95_ms = p95_ms
        self._most = most
        self._typical_call_s = typical_call_s
        self._clock = clock

    def on_answer(self, ms: float) -> None:
        """The first audio of an answer was sent."""
        self._board.add(ms, self._clock())

    def set_open(self, calls: int) -> None:
        """This instance has so many calls."""
        self._board.set_open(calls)

    def close(self) -> None:
        """The instance ends."""
        self._board.close()

    def limit(self, own: int, most: int) -> int:
        """Calls that this instance may have: ``own`` that it has, and its share of the free places.

        ``most``: the instance's own limit.
        """
        calls = self._board.open
        if self._is_late(calls):
            return min(own, most)
        if not self._most:
            return most
        return min(most, own + math.ceil(max(0, self._most - calls) / max(1, self._board.instances)))

    def check(self) -> None:
        """Return if there is room for another call.

        Raises:
            TooManySessionsError: there is none, or the calls that are open are not answered in time.
        """
        calls = self._board.open
        if self._most and calls >= self._most:
            why = f"all {self._most} sessions of the server are in use"
        elif self._is_late(calls):
            why = f"with {calls} calls the server answers later than {self._p95_ms:g} ms"
        else:
            return
        raise TooManySessionsError(
            why, retry_after_s=max(_LEAST_RETRY_S, self._typical_call_s / max(1, calls))
        )

    def _is_late(self, calls: int) -> bool:
        """Whether answers were late with about as many calls as are open, or with one more."""
        if self._p95_ms is None or not calls:
            return False
        answers = self._board.answers(self._clock() - WINDOW_S)
        at, width = answers["calls"], calls // 10
        # Where one call alone is late, fewer calls do not help.
        several = at > 1
        levels = (several & (low <= at) & (at <= low + width) for low in (calls - width, calls + 1))
        return any(self._are_late(answers["ms"][level]) for level in levels)

    def _are_late(self, ms: NDArray[np.float64]) -> bool:
        assert self._p95_ms is not None
        slow, count = int((ms > self._p95_ms).sum()), len(ms)
        doubt = _DOUBTS * math.sqrt(count * _SHARE * (1 - _SHARE))
        return count >= FEWEST and slow > _SHARE * count + doubt
