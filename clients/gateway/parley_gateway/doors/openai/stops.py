"""Ends a text before certain words."""

from __future__ import annotations

from collections.abc import Sequence


class StopFilter:
    """Lets through what certainly does not belong to a stop.

    Args:
        stops: the text ends before the first of them.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False
        """One of them was written."""

    def feed(self, text: str) -> str:
        """What may be shown now that ``text`` has followed."""
        self._held += text
        ends = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if ends:
            self.stopped = True
            shown, self._held = self._held[: min(ends)], ""
            return shown
        keep = max((self._overlap(stop) for stop in self._stops), default=0)
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def finish(self) -> str:
        """The rest: it was the beginning of a stop that did not come."""
        shown, self._held = self._held, ""
        return shown

    def _overlap(self, stop: str) -> int:
        """How much of the text's end is a beginning of ``stop``."""
        longest = min(len(stop) - 1, len(self._held))
        return next((size for size in range(longest, 0, -1) if self._held.endswith(stop[:size])), 0)
