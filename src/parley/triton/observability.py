"""Python's logging in Triton's log or beside it, and metrics on Triton's metrics page."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from typing import Any

from parley.errors import ModelLoadingError
from parley.logs import JsonFormatter, read_log_format
from parley.metrics import DROPPED, Changes, Family, Labels, MetricsRecorder

PUBLISH_S = 2.0
_CLOSE_S = 5.0
_STDERR = 2  # the file descriptor
_log = logging.getLogger(__name__)


class TritonLogHandler(logging.Handler):
    """Passes records on to Triton's logger, so that they stand in the server's log in order."""

    def __init__(self, pb_utils: Any) -> None:
        super().__init__()
        logger = pb_utils.Logger
        self._by_level = (
            (logging.ERROR, logger.log_error),
            (logging.WARNING, logger.log_warn),
            (logging.INFO, logger.log_info),
            (logging.NOTSET, logger.log_verbose),
        )

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        try:
            text = self.format(record)
            write = next(write for level, write in self._by_level if record.levelno >= level)
            write(text)
        except Exception:  # noqa: BLE001 - logging must not take the model down; this prints the failure
            self.handleError(record)


class JsonLogHandler(logging.Handler):
    """Writes each record as one JSON line to standard error, which is where Triton logs by default.

    Triton would put its own prefix before the line, and escape it. One write for each line, of at most
    :data:`parley.logs.MAX_LINE_BYTES`, keeps the lines of several processes apart.
    """

    def __init__(self, model: str) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter(model))

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        try:
            line = f"{self.format(record)}\n".encode()
            while line:  # a file on a disk that is nearly full takes a part
                line = line[os.write(_STDERR, line) :]
        except Exception:  # noqa: BLE001 - logging must not take the model down; this prints the failure
            self.handleError(record)


def log_to_triton(
    pb_utils: Any, model: str, level: int = logging.INFO, *, environment: Mapping[str, str] = os.environ
) -> None:
    """Send the project's log records to Triton's log; call once, in ``initialize``.

    With ``PARLEY_LOG_FORMAT=json`` they are JSON lines on standard error.

    Raises:
        ModelLoadingError: ``PARLEY_LOG_FORMAT`` names no format.
    """
    handler: logging.Handler
    try:
        if read_log_format(environment) == "json":
            handler = JsonLogHandler(model)
        else:
            handler = TritonLogHandler(pb_utils)
            handler.setFormatter(logging.Formatter(f"{model}: %(message)s"))
    except ValueError as error:
        raise ModelLoadingError(str(error)) from error
    logger = logging.getLogger("parley")
    logger.handlers = [handler]
    logger.setLevel(level)
    logger.propagate = False


def make_family(pb_utils: Any, family: Family) -> Any:
    """Triton's ``MetricFamily`` of this name and kind."""
    kind = getattr(pb_utils.MetricFamily, family.kind.upper())
    return pb_utils.MetricFamily(name=family.name, description=family.description, kind=kind)


class MetricsPublisher:
    """Writes metrics to Triton's metrics page, in a thread.

    Each value is a round trip to the server's process, so values are collected for a while first. Instances
    of a model share the series that have the same labels.
    """

    def __init__(self, pb_utils: Any, metrics: MetricsRecorder, *, interval_s: float = PUBLISH_S) -> None:
        self._metrics = metrics
        self._interval_s = interval_s
        self._families = {family: make_family(pb_utils, family) for family in metrics.families}
        self._series: dict[tuple[Family, Labels], Any] = {}
        for family in metrics.families:
            if family.kind == "histogram" and not family.labels:
                self._one(family, ())  # at 0, as counters
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop. What was recorded since the last write is lost."""
        self._closed.set()
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        failing = False
        while True:
            errors = self._publish(self._metrics.drain())
            if errors and not failing:
                _log.warning("%d metrics were not written", len(errors), exc_info=errors[0])
            failing = bool(errors)
            if self._closed.wait(self._interval_s):
                return

    def _publish(self, changes: Changes) -> list[Exception]:
        """Write what was recorded; a series that Triton refuses costs no other one."""
        errors: list[Exception] = []
        for (family, labels), amount in changes.counts.items():
            try:
                self._one(family, labels).increment(amount)
            except Exception as error:  # noqa: BLE001 - Triton's errors have no type of their own
                errors.append(error)
                self._metrics.restore(family, labels, amount)
        for (family, labels), value in changes.values.items():
            try:
                self._one(family, labels).set(value)
            except Exception as error:  # noqa: BLE001 - set again with the next change
                errors.append(error)
        for family, labels, value in changes.observations:
            if self._closed.is_set():
                break
            try:
                self._one(family, labels).observe(value)
            except Exception as error:  # noqa: BLE001 - counted as dropped
                errors.append(error)
                self._metrics.count(DROPPED)
        return errors

    def _one(self, family: Family, labels: Labels) -> Any:
        key = family, labels
        if key not in self._series:
            options = {"buckets": list(family.buckets)} if family.kind == "histogram" else {}
            self._series[key] = self._families[family].Metric(labels=dict(labels), **options)
        return self._series[key]
