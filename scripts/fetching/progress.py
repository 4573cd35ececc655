"""Progress of downloads in the terminal."""

from __future__ import annotations

import sys
import time
from typing import TextIO

_INTERVAL_TTY_S = 0.2
_INTERVAL_LOG_S = 10.0


class Progress:
    """A line for each file: rewritten in a terminal, repeated every ten seconds in a log.

    Args:
        stream: where to write; None: standard error.
        is_brief: files that are complete, and notes, leave no line of their own.
    """

    def __init__(self, stream: TextIO | None = None, *, is_brief: bool = False) -> None:
        self._out = sys.stderr if stream is None else stream
        self.is_brief = is_brief
        self._tty = self._out.isatty()
        self._interval = _INTERVAL_TTY_S if self._tty else _INTERVAL_LOG_S
        self._open = False
        self._name = ""
        self._size = self._first = self._there = 0
        self._began = self._shown = 0.0

    def begin(self, name: str, size: int = 0) -> None:
        """Start a file; a size of 0 is unknown."""
        self._name, self._size, self._first = name, size, -1
        self._there = 0
        self._began = self._shown = time.monotonic()

    def arrived(self, there: int) -> None:
        """Show the present length of the file."""
        if self._first < 0:
            self._first = there
        self._there = there
        now = time.monotonic()
        if now - self._shown >= self._interval:
            self._shown = now
            self._line(self._state(there, now), keep=False)

    def note(self, text: str) -> None:
        """Print a line between those of files."""
        if not self.is_brief:
            self.announce(f"  {text}")

    def announce(self, text: str) -> None:
        """Print a line in any case."""
        self._line(text, keep=True)

    def end(self, *, fetched: bool) -> None:
        """The file is complete."""
        how = f"in {time.monotonic() - self._began:.1f} s" if fetched else "was there"
        if self._tty or not self.is_brief:
            line = f"{self._name}  {size_text(self._size or self._there)}  {how}"
            self._line(line, keep=not self.is_brief)

    def _state(self, there: int, now: float) -> str:
        rate = (there - self._first) / max(now - self._began, 1e-3)
        if not self._size:
            return f"{self._name}  {size_text(there)}, {size_text(rate)}/s"
        share = there / self._size
        left = f", {(self._size - there) / rate:.0f} s left" if rate > 0 else ""
        return f"{self._name}  {share:4.0%} of {size_text(self._size)}, {size_text(rate)}/s{left}"

    def _line(self, text: str, *, keep: bool) -> None:
        if self._tty:
            self._out.write(f"\r\033[K{text}" + ("\n" if keep else ""))
        else:
            self._out.write(f"{text}\n")
        self._out.flush()


def size_text(count: float) -> str:
    """A number of bytes with its unit."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"
