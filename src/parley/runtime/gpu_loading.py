"""The order in which models of several processes take memory of one GPU.

vLLM without a fixed size of its cache measures, while it loads, how much memory is left: it counts what
other processes take meanwhile as its own, and fails when they free some. Triton loads models in parallel, and
has no order for models that do not belong to one ensemble. So such a model loads alone, and all others, which
measure nothing, load together: a writer and readers of one lock, a file in the folder for temporary files,
which all models of a server share. The kernel frees the lock of a process that ends.
"""

from __future__ import annotations

import fcntl
import logging
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from parley.errors import ModelLoadingError

ENGINE_START_S = 900.0
"""The longest start of a vLLM engine, which compiles everything if it is the first one."""
LOADING_TIMEOUT_S = ENGINE_START_S + 60.0
"""The longest wait for others: such an engine may hold the lock for all of its start."""
START_TIMEOUT_S = LOADING_TIMEOUT_S + ENGINE_START_S
"""The longest start of a model: it waits for another engine, and then starts one itself."""
_POLL_S = 0.2
_log = logging.getLogger(__name__)


@contextmanager
def loading_on_gpu(
    *, alone: bool, folder: Path | None = None, timeout_s: float = LOADING_TIMEOUT_S
) -> Iterator[None]:
    """Hold the right to take memory of the GPU, for as long as a model loads.

    Args:
        alone: whether no other model may load meanwhile.
        folder: of the lock; None: the folder for temporary files.
        timeout_s: the longest wait for other models.

    Raises:
        ModelLoadingError: others loaded for longer than that, or the lock cannot be opened.
    """
    path = (folder or Path(tempfile.gettempdir())) / f"parley-gpu-loading-{os.getuid()}.lock"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ModelLoadingError(f"the lock for loading on the GPU, {path}: {error.strerror}") from error
    try:
        _acquire(descriptor, fcntl.LOCK_EX if alone else fcntl.LOCK_SH, timeout_s)
        try:
            yield
        finally:
            # A process that was forked meanwhile holds the descriptor, too, and must not hold the lock.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, kind: int, timeout_s: float) -> None:
    end = time.monotonic() + timeout_s
    waits = False
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                raise ModelLoadingError(
                    f"other models have been loading on the GPU for {timeout_s:g} s"
                ) from None
        else:
            return
        if not waits:
            _log.info("waiting until other models have loaded on the GPU")
            waits = True
        time.sleep(_POLL_S)
