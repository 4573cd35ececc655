"""An event loop without a clock, whose owner says what happens next."""

from __future__ import annotations

import heapq
from asyncio.events import _set_running_loop
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from parley.replay.course import CourseLoop


class ReplayLoop(CourseLoop):
    """Calls what a real loop would call, in its order, one callback at a time."""

    _ready: Any
    _scheduled: Any

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self._left = 0  # of those that are ready, those of this iteration

    def time(self) -> float:
        """Seconds since some moment, as its owner has said."""
        return self.now

    @contextmanager
    def running(self) -> Iterator[None]:
        """Be the running loop for a while, and then no more."""
        _set_running_loop(self)
        try:
            yield
        finally:
            _set_running_loop(None)
            self.close()

    def begin_iteration(self, now: float) -> None:
        """The next iteration begins: timers are due that are due at ``now``."""
        self.now = now
        while self._scheduled and self._scheduled[0].when() < now + self._clock_resolution:  # type: ignore[attr-defined]
            self._ready.append(heapq.heappop(self._scheduled))
        self._left = len(self._ready)

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to be called in this iteration."""
        while self._left and self._ready[0].cancelled():
            self._ready.popleft()
            self._left -= 1
        return not self._left

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to be called but timers."""
        return not self._ready

    def run_next(self) -> None:
        """Call what is next in this iteration."""
        self._left -= 1
        self._ready.popleft()._run()  # noqa: SLF001 - as event loops do

    def run_newest(self) -> None:
        """Call what was added last."""
        self._ready.pop()._run()  # noqa: SLF001

    @property
    def next_timer(self) -> float | None:
        """When the next timer is due; None: there is none."""
        while self._scheduled and self._scheduled[0].cancelled():
            heapq.heappop(self._scheduled)
        return self._scheduled[0].when() if self._scheduled else None
