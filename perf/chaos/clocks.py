"""A wall clock that can be set for some processes, by Debian's libfaketime.

The kernel has one wall clock: setting it would harm everything else on the machine. A monotonic clock does
not jump, so only the other is changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from parley.launcher.options import ROOT

_LIBRARY = "usr/lib/*/faketime/libfaketimeMT.so.1"
_CACHED = ROOT / ".cache" / "faketime"


def find_library() -> Path | None:
    """The library; None: it is not here, and ``scripts/setup --faketime`` brings it."""
    return next((path for root in (Path("/"), _CACHED) for path in root.glob(_LIBRARY)), None)


class Clock:
    """The clock of all processes that are started with :attr:`environment`.

    Args:
        library: See :func:`find_library`.
        path: Of the file that sets it.
    """

    def __init__(self, library: Path, path: Path) -> None:
        self._library = library
        self._path = path
        self.environment: Mapping[str, str] = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(path),
            # How soon a change of the file is noticed (seconds).
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            # The times of files come from the kernel, and are compared with each other only.
            "NO_FAKE_STAT": "1",
        }
        self.set(0)

    def set(self, seconds: int) -> None:
        """Let it differ from the machine's by so much."""
        new = self._path.with_suffix(".new")
        new.write_text(f"{seconds:+d}s\n")
        new.replace(self._path)

    def rules(self, pid: int) -> bool:
        """Whether a process has this clock."""
        return self._library.name in Path(f"/proc/{pid}/maps").read_text()
