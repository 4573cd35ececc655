"""A wall clock that can be set for some processes.

The kernel has one wall clock, which time namespaces leave out: setting it would harm everything else on the
machine. A monotonic clock does not jump, so only the other is changed.

Why not libfaketime: version 0.9.10, that of Debian 12 and Ubuntu 24.04, lets ``clock_nanosleep`` with a
monotonic deadline, and so CPython's ``time.sleep``, fail with EINVAL, and does not know futexes, by which
gRPC waits. No version up to 0.9.12 translates the deadlines of ``sem_timedwait`` where the clock is given as
a difference, or those of ``pthread_mutex_timedlock``, by which Triton's Python backend waits, or lets a wait
that has begun follow a jump; 0.9.12 waits on after a futex was woken.
"""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path

from parley.errors import ParleyError

_SOURCE = Path(__file__).with_name("clock.c")
_SECONDS = struct.Struct("=q")


class ClockError(ParleyError):
    """No clock can be made here."""

    code = "no_clock"


class Clock:
    """The clock of all processes that are started with :attr:`environment`.

    Args:
        folder: For the library that these preload, and the file that sets it.

    Raises:
        ClockError: there is no C compiler, or it fails.
    """

    def __init__(self, folder: Path) -> None:
        self._library = folder / "parley_chaos_clock.so"
        self._path = folder / "clock"
        self.environment: Mapping[str, str] = {
            "LD_PRELOAD": str(self._library),
            "PARLEY_CHAOS_CLOCK": str(self._path),
        }
        self._path.write_bytes(_SECONDS.pack(0))
        self._build()

    def _build(self) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            raise ClockError("the clock needs a C compiler: `scripts/setup --compiler`, as root on Debian")
        options = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
        done = subprocess.run(
            [compiler, *options, "-o", str(self._library), str(_SOURCE)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ClockError(f"{_SOURCE.name} was not compiled: {done.stderr.strip()[-500:]}")

    def set(self, seconds: int) -> None:
        """Let it differ from the machine's by so much."""
        # Mapped, not written: no process may read half of a number.
        with self._path.open("r+b") as file, mmap.mmap(file.fileno(), _SECONDS.size) as mapped:
            mapped[:] = _SECONDS.pack(seconds)

    def rules(self, pid: int) -> bool:
        """Whether a process has this clock.

        Raises:
            OSError: it has ended.
        """
        return str(self._library) in Path(f"/proc/{pid}/maps").read_text()
