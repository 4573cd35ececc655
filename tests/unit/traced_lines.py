"""Counts work by the lines of Python that it runs: seconds depend on the machine."""

from __future__ import annotations

import sys
from collections.abc import Callable


def lines_of(act: Callable, *arguments) -> int:
    """How many lines a call runs."""
    count = 0

    def trace(_frame, event, _argument):
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act(*arguments)
    finally:
        sys.settrace(before)
    return count
