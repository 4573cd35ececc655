"""How the process of a model ends: quickly with the server, and by itself when its engine is dead."""

from __future__ import annotations

import atexit
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable

_SETTLE_S = 0.2
_GRACE_S = 2.0
_POLL_S = 0.02
_FATAL_ERRORS = 3
# Of ONNX Runtime and PyTorch. A device that is out of memory (2) goes on working.
_DEVICE_ERROR = re.compile(
    r"CUDA failure (?!2\b)|CUDA error(?!: out of memory)|(CUBLAS|CUDNN|CUFFT) failure"
    r"|cudaError(?!MemoryAllocation)",
    re.IGNORECASE,
)
_ending = threading.Lock()  # taken once, by the thread that ends the process
_log = logging.getLogger(__name__)


def skip_interpreter_end() -> None:
    """End this process without taking the interpreter apart; call it first of all in ``initialize``.

    With torch and vLLM loaded that takes seconds of a processor, several times as long on a
    busy machine, and Triton waits for it. The process's memory goes back to the system anyway. What
    other code has registered with :mod:`atexit` runs before, because it is registered later.
    """
    atexit.register(_end)


def end_failed_process(reason: str, *, idle: Callable[[], bool] = lambda: False) -> None:
    """End this process with exit code 1, because its model can never answer again; returns at once.

    Triton would call the model ready for ever; the launcher's supervisor loads a model whose process has
    ended again. Safe to call from any thread, and more than once.

    Args:
        reason: for the log.
        idle: whether all answers have been handed over; the process ends then, at the latest after 2 seconds.
    """
    if _ending.acquire(blocking=False):
        _log.critical("%s; this process ends, so that the model is loaded again", reason)
        threading.Thread(target=_end_when_idle, args=(idle,), name="end of the process", daemon=True).start()


class DeviceErrors:
    """Counts the failures of a device in a row, and ends the process when there is no hope left.

    After an illegal access or a lost device every call of a process fails, until the process ends.

    Args:
        what: uses the device; for the log.
    """

    def __init__(self, what: str, end: Callable[[str], None] = end_failed_process) -> None:
        self._what = what
        self._end = end
        self._count = 0

    def worked(self) -> None:
        """A call has succeeded."""
        self._count = 0

    def failed(self, error: BaseException) -> None:
        """A call has failed; only an error of the device counts."""
        if _DEVICE_ERROR.search(str(error)):
            self._count += 1
            if self._count == _FATAL_ERRORS:
                self._end(f"{self._what}: the device has failed {_FATAL_ERRORS} times in a row: {error}")


def _end_when_idle(idle: Callable[[], bool]) -> None:
    until = time.monotonic() + _GRACE_S
    time.sleep(_SETTLE_S)  # answers that fail now are on their way to the event loop
    while time.monotonic() < until and not idle():
        time.sleep(_POLL_S)
    _end(1)


def _end(code: int = 0) -> None:
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
