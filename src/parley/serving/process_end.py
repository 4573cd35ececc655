"""A quick end for model processes that have grown large."""

from __future__ import annotations

import atexit
import logging
import os
import sys


def skip_interpreter_end() -> None:
    """End this process without taking the interpreter apart; call it first of all in ``initialize``.

    With torch and vLLM loaded that takes seconds of a processor, several times as long on a
    busy machine, and Triton waits for it. The process's memory goes back to the system anyway. What
    other code has registered with :mod:`atexit` runs before, because it is registered later.
    """
    atexit.register(_end)


def _end() -> None:
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
