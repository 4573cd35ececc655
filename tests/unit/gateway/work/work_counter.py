"""Counts the lines of Python that each callback of an event loop executes."""

import asyncio
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Work:
    """The longest callback."""

    lines: int
    where: str
    """The coroutine or function."""


NOTHING = Work(0, "nothing")


class WorkCounter:
    """Counts in the thread that calls :meth:`start`, and remembers the longest callback.

    A callback is what an event loop runs in one go: a step of a task, the arrival of data, a timer. Lines do
    not depend on the machine. What C code does within one line is not counted.
    """

    def __init__(self):
        self._lines = 0
        self._thread = 0
        self.longest = NOTHING

    def start(self):
        """Count in this thread from now on."""
        self._thread = threading.get_ident()
        sys.settrace(self._enter)

    def take(self):
        """The longest callback since the last call."""
        longest, self.longest = self.longest, NOTHING
        return longest

    def _enter(self, frame, event, argument):
        self._lines += 1
        return self._inside

    def _inside(self, frame, event, argument):
        if event == "line":
            self._lines += 1
        return self._inside

    @contextmanager
    def watching(self):
        """Count callbacks of all event loops of the thread."""
        run = asyncio.Handle._run

        def counted(handle):
            if threading.get_ident() != self._thread:
                run(handle)
                return
            before = self._lines
            run(handle)
            lines = self._lines - before
            if lines > self.longest.lines:
                self.longest = Work(lines, _name_of(handle))

        asyncio.Handle._run = counted
        try:
            yield self
        finally:
            asyncio.Handle._run = run


def _name_of(handle):
    owner = getattr(handle._callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return owner.get_coro().__qualname__
    return getattr(handle._callback, "__qualname__", repr(handle._callback))
