"""The order and times in which an event loop calls what belongs to one recorded call."""

from __future__ import annotations

import asyncio
import heapq
import selectors
import time
from asyncio.events import _set_running_loop
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context
from datetime import datetime
from itertools import count
from typing import Any

from parley.chance import Chance, current_chance


class Course(Chance):
    """Counts the steps of a call: the callbacks whose context it is in."""

    def __init__(self, seed: int, now: datetime) -> None:
        super().__init__(seed, now)
        self.steps = 0
        self._tasks = count()

    def step(self, callback: Callable[..., object], *args: Any) -> None:
        """Call ``callback``, which is the next step."""
        self.steps += 1
        callback(*args)

    def next_task(self) -> int:
        """The number of the next task of this call."""
        return next(self._tasks)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """What the block does belongs to this call, and so do its tasks and timers."""
        before = current_chance.set(self)
        try:
            yield
        finally:
            current_chance.reset(before)


def find_course(context: Context | None) -> Course | None:
    """The call that a context belongs to; None as ``context``: the one under way."""
    chance = current_chance.get() if context is None else context.get(current_chance)
    return chance if isinstance(chance, Course) else None


class CourseTask(asyncio.Task[Any]):
    """A task of a recorded call. Sets of tasks, such as those of task groups, have the order of its hash."""

    def __init__(self, number: int, work: Coroutine[Any, Any, Any], **options: Any) -> None:
        self._number = number
        super().__init__(work, **options)

    def __hash__(self) -> int:
        return self._number


class _Moment(float):
    """When a timer is due; of two that are due at once the one that was made first is called first."""

    number: int

    def __lt__(self, other: float) -> bool:
        return super().__lt__(other) or (self == other and self.number < getattr(other, "number", -1))


class CourseLoop(asyncio.SelectorEventLoop):
    """An event loop that counts the steps of recorded calls."""

    def __init__(self, selector: selectors.BaseSelector | None = None) -> None:
        super().__init__(selector)
        self.iterations = 0
        self._timers = count()
        self.set_task_factory(make_task)  # type: ignore[arg-type]

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Any:
        """As :meth:`asyncio.loop.call_soon`."""
        return super().call_soon(*_counted(context, callback, args), context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Any:
        """As :meth:`asyncio.loop.call_at`."""
        moment = _Moment(when)
        moment.number = next(self._timers)
        return super().call_at(moment, *_counted(context, callback, args), context=context)

    def _run_once(self) -> None:
        self.iterations += 1
        super()._run_once()  # type: ignore[misc]


def _counted(context: Context | None, callback: Callable[..., object], args: tuple[Any, ...]) -> Any:
    course = find_course(context)
    return (callback, *args) if course is None else (course.step, callback, *args)


def make_task(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **options: Any
) -> asyncio.Task[Any]:
    """Make a task: a task factory of event loops."""
    course = find_course(options.get("context"))
    if course is None:
        return asyncio.Task(work, loop=loop, **options)
    return CourseTask(course.next_task(), work, loop=loop, **options)


class SteppedLoop(CourseLoop):
    """Reads the clock once in each iteration, so that all steps of one have the same time."""

    def __init__(self) -> None:
        self.now = time.monotonic()
        super().__init__(_SteppingSelector(self))

    def time(self) -> float:
        """Seconds of the monotonic clock when this iteration began."""
        return self.now


class _SteppingSelector(selectors.DefaultSelector):
    def __init__(self, loop: SteppedLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        """As of the standard library; ``timeout`` counts from the loop's time, which is past."""
        if timeout:
            timeout = max(0.0, timeout - (time.monotonic() - self._loop.now))
        found = super().select(timeout)
        self._loop.now = time.monotonic()
        return found


class ReplayLoop(SteppedLoop):
    """Has no clock: its owner says what happens next. It calls what a real loop would call, in its order."""

    _ready: Any
    _scheduled: Any

    def __init__(self) -> None:
        super().__init__()
        self._left = 0  # of those that are ready, those of this iteration

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

    def run_next(self) -> None:
        """Call what is next in this iteration."""
        self._left -= 1
        self._ready.popleft()._run()  # noqa: SLF001 - as event loops do

    def run_newest(self) -> None:
        """Call what was added last."""
        self._ready.pop()._run()  # noqa: SLF001

    def next_time(self) -> float | None:
        """When the next iteration has something to call; None: never."""
        while self._scheduled and self._scheduled[0].cancelled():
            heapq.heappop(self._scheduled)
        if self._ready:
            return self.now
        return max(self.now, self._scheduled[0].when()) if self._scheduled else None
