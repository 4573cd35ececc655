"""An event loop that counts what one turn of it does."""

from __future__ import annotations

import sys
from pathlib import Path

from virtual_loop import VirtualLoop

_TESTS = str(Path(__file__).parents[2])


class TooMuchWorkError(BaseException):
    """Raised in the midst of the work: no handler of failures may go on with it."""


class WorkLoop(VirtualLoop):
    """Counts the lines of Python that each turn runs, without those of the tests.

    Lines, because a scan in a loop makes no calls; and no seconds, which depend on the machine.

    Args:
        most: lines of one turn; the next one raises.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self._lines = 0
        self.longest = 0
        """Lines of the longest turn so far."""
        self.excess: str | None = None
        """Where a turn had run too many."""

    def _run_once(self) -> None:
        self._lines = 0
        traced = sys.gettrace()
        sys.settrace(self._enter)
        try:
            super()._run_once()
        finally:
            sys.settrace(traced)
            self.longest = max(self.longest, self._lines)

    def _enter(self, frame, _event, _argument):
        return None if frame.f_code.co_filename.startswith(_TESTS) else self._count

    def _count(self, frame, event, _argument):
        if event == "line":
            self._lines += 1
            if self._lines > self._most:
                self.excess = self.excess or f"{frame.f_code.co_qualname} ({frame.f_code.co_filename})"
                raise TooMuchWorkError
        return self._count
