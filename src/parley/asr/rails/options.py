"""What the options of a stream may be, whatever recognises it."""

from __future__ import annotations

from parley.asr.messages import AsrOptions
from parley.errors import InvalidMessageError

MAX_PARTIAL_INTERVAL_MS = 60_000


def check_options(options: AsrOptions) -> None:
    """Refuse options that no stream can work with.

    Raises:
        InvalidMessageError: the interval is out of range.
    """
    if not 0 <= options.partial_interval_ms <= MAX_PARTIAL_INTERVAL_MS:
        raise InvalidMessageError(
            f"partial_interval_ms is {options.partial_interval_ms}; it must be 0 to {MAX_PARTIAL_INTERVAL_MS}"
        )
