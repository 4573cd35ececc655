"""What the person at the terminal sees."""

from __future__ import annotations

import sys
import time


class SetupError(Exception):
    """The set-up cannot go on; the message says what to do."""


class Progress:
    """Numbered steps with the time that has passed."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._step = 0
        self._begin = time.monotonic()

    def step(self, text: str) -> None:
        """Announce the next step."""
        self._step += 1
        print(f"[{self._step}/{self._total}] {text}", file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        """Say something about the step under way."""
        print(f"      {text}", file=sys.stderr, flush=True)

    def done(self, text: str) -> None:
        """Say that all is ready."""
        print(f"{text} ({time.monotonic() - self._begin:.0f} s)", file=sys.stderr, flush=True)
