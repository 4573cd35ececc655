"""Something small that is done again and again beside a model's executions."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

_CLOSE_S = 5.0
_log = logging.getLogger(__name__)


class Periodic:
    """Runs a function every ``interval_s`` seconds in a thread, until it is closed.

    A failure is logged and does not end the series.
    """

    def __init__(self, interval_s: float, run: Callable[[], object]) -> None:
        self._interval_s = interval_s
        self._run = run
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._repeat, name="periodic", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop; a run under way is waited for."""
        self._closed.set()
        self._thread.join(_CLOSE_S)

    def _repeat(self) -> None:
        while not self._closed.wait(self._interval_s):
            try:
                self._run()
            except Exception:  # noqa: BLE001 - the series goes on, and the log says why
                _log.exception("a periodic task failed")
