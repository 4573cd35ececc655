"""The order and times in which an event loop calls what belongs to one recorded call."""

from __future__ import annotations

import asyncio
import heapq
import selectors
import time
from asyncio.events import TimerHandle
from collections.abc import Callable, Coroutine
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


class OrderedTimer(TimerHandle):
    """Of two timers that are due at once the one that was made first is called first."""

    __slots__ = ("number",)
    number: int

    def __lt__(self, other: TimerHandle) -> bool:
        mine, others = (self.when(), self.number), (other.when(), getattr(other, "number", -1))
        return mine < others


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
        if (course := find_course(context)) is not None:
            callback, args = course.step, (callback, *args)
        return super().call_soon(callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> TimerHandle:
        """As :meth:`asyncio.loop.call_at`."""
        if (course := find_course(context)) is not None:
            callback, args = course.step, (callback, *args)
        timer = OrderedTimer(when, callback, args, self, context)
        timer.number = next(self._timers)
        heapq.heappush(self._scheduled, timer)  # type: ignore[attr-defined]
        timer._scheduled = True  # type: ignore[attr-defined]  # noqa: SLF001 - as BaseEventLoop does
        return timer

    def _run_once(self) -> None:
        self.iterations += 1
        super()._run_once()  # type: ignore[misc]


def make_task(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], context: Context | None = None
) -> asyncio.Task[Any]:
    """Make a task: a task factory of event loops."""
    course = find_course(context)
    if course is None:
        return asyncio.Task(work, loop=loop, context=context)
    return CourseTask(course.next_task(), work, loop=loop, context=context)


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
