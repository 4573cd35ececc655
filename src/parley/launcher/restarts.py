"""When a failed model or server is replaced, and the record of what was replaced."""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class SupervisorLimits:
    """When the supervisor acts. All times in seconds."""

    look_s: float = 0.2
    """Between two looks at the processes."""
    stopped_s: float = 2.0
    """A process may be stopped for so long."""
    quiet_s: float = 3.0
    """A model that has completed nothing for so long is asked its canary."""
    canary_s: float = 2.5
    """Deadline of a canary. A model is unresponsive when it misses two, one after the other."""
    silent_s: float = 8.0
    """An event loop that shows that it turns may stand still for so long."""
    working_s: float = 60.0
    """A model whose process uses its processor may complete nothing for so long."""
    reload_canary_s: float = 20.0
    """Deadline of the canary of a model that was just loaded."""
    server_failures: int = 3
    """A server that does not answer so many questions, one after the other, is unresponsive."""
    waits_s: tuple[float, ...] = (1.0, 2.0, 5.0, 10.0, 20.0)
    """After the first attempt in a window, the second ...; the last after all that follow. Before the first
    attempt there is none."""
    window_s: float = 600.0
    """Attempts count for so long."""
    model_attempts: int = 5
    """One more within the window costs a new server."""
    server_attempts: int = 3
    """One more within the window, and the server is given up."""


class Attempts:
    """Counts attempts within a window, and how long to wait before the next one."""

    def __init__(self, limits: SupervisorLimits, most: int) -> None:
        self._limits = limits
        self._most = most
        self._times: deque[float] = deque()

    def next_at(self, now: float) -> float | None:
        """When the next attempt may be made; None: there were too many."""
        while self._times and now - self._times[0] > self._limits.window_s:
            self._times.popleft()
        if len(self._times) >= self._most:
            return None
        if not self._times:
            return now
        waits = self._limits.waits_s
        return max(now, self._times[-1] + waits[min(len(self._times), len(waits)) - 1])

    def add(self, now: float) -> None:
        """An attempt is being made."""
        self._times.append(now)


@dataclass
class Last:
    """The last time that something was replaced."""

    reason: str
    detail: str
    noticed: float
    """Seconds since the epoch; so for the next one."""
    answered: float | None = None
    """None: not yet."""


@dataclass
class Record:
    """What is written down about a model or the server."""

    state: str = "serving"
    """``serving`` or ``restarting``; of the server also ``failed`` (given up) and ``stopped``."""
    restarts: dict[str, int] = field(default_factory=dict)
    """By reason."""
    last: Last | None = None

    def began(self, reason: str, detail: str) -> None:
        """Something is being replaced."""
        self.state = "restarting"
        self.restarts[reason] = self.restarts.get(reason, 0) + 1
        self.last = Last(reason, detail, time.time())

    def ended(self) -> float:
        """It works again; returns the seconds since it was noticed."""
        self.state = "serving"
        if self.last is None:
            return 0.0
        self.last.answered = time.time()
        return self.last.answered - self.last.noticed


def write_record(path: Path, server: Record, models: Mapping[str, Record]) -> None:
    """Write all records as JSON; a reader sees the old file or the new one, and nothing between."""
    content = {
        "server": asdict(server),
        "models": {name: asdict(record) for name, record in sorted(models.items())},
    }
    draft = path.with_suffix(".new")
    try:
        draft.write_text(json.dumps(content, indent=2) + "\n")
        draft.replace(path)
    except OSError as error:
        _log.warning("the record of restarts was not written: %s", error)
