"""What a download says in the terminal."""

from __future__ import annotations

import sys
from typing import TextIO


class Progress:
    """Lines about downloads; bars of single files are those of ``huggingface_hub``.

    Args:
        stream: where to write; None: standard error.
        is_brief: only announcements are kept.
    """

    def __init__(self, stream: TextIO | None = None, *, is_brief: bool = False) -> None:
        self._out = sys.stderr if stream is None else stream
        self.is_brief = is_brief
        self._is_terminal = self._out.isatty()

    def announce(self, text: str) -> None:
        """Print a line in any case."""
        self._line(text, "\n")

    def note(self, text: str) -> None:
        """Print a line; a brief download in a terminal overwrites it, and writes none elsewhere."""
        if not self.is_brief:
            self._line(f"  {text}", "\n")
        elif self._is_terminal:
            self._line(f"  {text}", "")

    def _line(self, text: str, end: str) -> None:
        self._out.write(("\r\033[K" if self._is_terminal else "") + text + end)
        self._out.flush()


def size_text(count: float) -> str:
    """A number of bytes with its unit."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"
