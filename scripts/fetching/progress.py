"""What a download says in the terminal."""

from __future__ import annotations

import sys
from typing import TextIO


class Progress:
    """Lines about downloads; bars of single files are those of ``huggingface_hub``.

    Args:
        stream: where to write; None: standard error.
        is_brief: only announcements stay in a terminal, and only they are written elsewhere.
    """

    def __init__(self, stream: TextIO | None = None, *, is_brief: bool = False) -> None:
        self._out = sys.stderr if stream is None else stream
        self.is_brief = is_brief
        self._start = "\r\033[K" if self._out.isatty() else ""

    def announce(self, text: str) -> None:
        """Print a line in any case."""
        print(self._start + text, file=self._out, flush=True)

    def note(self, text: str) -> None:
        """Print a line; a brief download overwrites it."""
        if not self.is_brief or self._start:
            end = "" if self.is_brief else "\n"
            print(f"{self._start}  {text}", end=end, file=self._out, flush=True)
