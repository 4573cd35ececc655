"""Adds up what observation costs in one model's process, for ``perf/bench_observation.py``.

:func:`install` runs in the process before the model is loaded. It times every call that records a metric, a
span or a log line by the processor time of its thread. The sums are written to a file twice a second.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opentelemetry.sdk._shared_internal import BatchProcessor

from parley import metrics, tracing
from parley.triton.observability import MetricsPublisher

INTERVAL_S = 0.5
"""Between two reports."""
WRITES_ASKED, WRITES_DONE = "write", "written"
"""Files: the number of metrics to write at once, and the same when it was done."""


class _Probe:
    """The sums of one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = threading.local()
        self.sums: dict[str, list[float]] = {}
        """By what was timed: calls, and seconds of processor time."""

    def time(self, owner: type, method: str, name: str) -> None:
        """Time a method of a class; calls below another one that is timed belong to that one."""
        original: Callable[..., Any] = getattr(owner, method)

        @functools.wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if getattr(self._inside, "timed", False):
                return original(*args, **kwargs)
            self._inside.timed = True
            begin = time.thread_time()
            try:
                return original(*args, **kwargs)
            finally:
                self._add(name, time.thread_time() - begin)
                self._inside.timed = False

        setattr(owner, method, timed)

    def count(self, owner: type, method: str, name: str) -> None:
        """Count the calls of a method."""
        original: Callable[..., Any] = getattr(owner, method)

        @functools.wraps(original)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self._add(name, 0.0)
            return original(*args, **kwargs)

        setattr(owner, method, counted)

    def _add(self, name: str, seconds: float) -> None:
        with self._lock:
            total = self.sums.setdefault(name, [0, 0.0])
            total[0] += 1
            total[1] += seconds


def install(folder: Path, writer: bool) -> None:
    """Begin to measure this process.

    Args:
        folder: of the sums, ``<pid>.json``.
        writer: whether this process writes metrics when :data:`WRITES_ASKED` is there.
    """
    probe = _Probe()
    for method in ("count", "set", "observe"):
        probe.time(metrics.MetricsRecorder, method, "metrics")
    probe.time(metrics.MetricsRecorder, "drain", "metrics drained")
    probe.count(MetricsPublisher, "_one", "metrics written")
    for method in ("begin", "begin_below"):
        probe.time(tracing.Tracing, method, "spans")
    for method in ("child", "set", "set_content", "end"):
        probe.time(tracing._Recorded, method, "spans")  # noqa: SLF001
    probe.time(BatchProcessor, "_export", "spans exported")
    probe.time(logging.Logger, "handle", "logs")
    publishers: list[MetricsPublisher] = []
    begin = MetricsPublisher.__init__

    @functools.wraps(begin)
    def remember(publisher: MetricsPublisher, *args: Any, **kwargs: Any) -> None:
        begin(publisher, *args, **kwargs)
        publishers.append(publisher)

    MetricsPublisher.__init__ = remember  # type: ignore[method-assign]

    def run() -> None:
        report = folder / f"{os.getpid()}.json"
        while True:
            time.sleep(INTERVAL_S)
            with probe._lock:  # noqa: SLF001
                text = json.dumps(probe.sums)
            part = report.with_suffix(".part")
            part.write_text(text)
            part.replace(report)
            if writer and publishers and (folder / WRITES_ASKED).exists():
                _write(publishers[0], folder)

    threading.Thread(target=run, name="probe", daemon=True).start()


def _write(publisher: MetricsPublisher, folder: Path) -> None:
    """Write a metric many times, as the publisher does."""
    asked = folder / WRITES_ASKED
    number = int(asked.read_text())
    asked.unlink()
    for _ in range(number):
        publisher._one(metrics.DROPPED, ()).increment(0)  # noqa: SLF001
    (folder / WRITES_DONE).write_text(str(number))
