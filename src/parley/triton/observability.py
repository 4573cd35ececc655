"""Python's logging inside Triton's log."""

from __future__ import annotations

import logging
from typing import Any


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


def log_to_triton(pb_utils: Any, model: str, level: int = logging.INFO) -> None:
    """Send the project's log records to Triton's log; call once, in ``initialize``."""
    handler = TritonLogHandler(pb_utils)
    handler.setFormatter(logging.Formatter(f"{model}: %(message)s"))
    logger = logging.getLogger("parley")
    logger.handlers = [handler]
    logger.setLevel(level)
    logger.propagate = False


class Counter:
    """A number that only grows, for each combination of labels that occurs.

    Labels must have few values: each combination exists for ever.
    """

    def __init__(self, pb_utils: Any, name: str, description: str) -> None:
        """Register the counter."""
        self._family = pb_utils.MetricFamily(
            name=name, description=description, kind=pb_utils.MetricFamily.COUNTER
        )
        self._metrics: dict[tuple[tuple[str, str], ...], Any] = {}

    def count(self, number: int = 1, /, **labels: str) -> None:
        """Add one, or another number."""
        key = tuple(sorted(labels.items()))
        if key not in self._metrics:
            self._metrics[key] = self._family.Metric(labels=labels)
        self._metrics[key].increment(number)
