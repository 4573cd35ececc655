"""What the server's processes leave in the folder for temporary files when they are killed.

Each server gets a temporary folder of its own, named after the process that launched it as its shared
memory regions are. One thing lies elsewhere: Triton's Python backend keeps a folder for packed Python
environments at a place of its own choice, which it removes only when it ends by itself.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path

import psutil

from parley.launcher.shared_memory import is_abandoned

_NAME = "tmp"
_ENVIRONMENTS = Path("/tmp")  # noqa: S108 - the name is compiled into the backend

_LOADING_S = 60.0
"""A server has its folder so long after its start at the latest."""


def make_folder(prefix: str) -> Path:
    """Make the folder of the server whose regions have this prefix."""
    folder = Path(tempfile.gettempdir()) / f"{prefix}{_NAME}"
    folder.mkdir(mode=0o700)
    return folder


def remove_folder(prefix: str) -> None:
    """Remove it with all that is in it; the server has ended."""
    shutil.rmtree(Path(tempfile.gettempdir()) / f"{prefix}{_NAME}", ignore_errors=True)


def remove_stale_folders(parent: Path | None = None) -> list[Path]:
    """Remove what servers of dead launchers left: never what a live process may use."""
    candidates = (parent or Path(tempfile.gettempdir())).glob(f"parley-*-{_NAME}")
    abandoned = [path for path in sorted(candidates) if is_abandoned(path)]
    if not abandoned:
        return []
    used = _temporary_folders()
    stale = [path for path in abandoned if str(path) not in used]
    for path in stale:
        shutil.rmtree(path, ignore_errors=True)
    return stale


def remove_environments(since: float, folder: Path = _ENVIRONMENTS) -> list[Path]:
    """Remove the backend's empty folders of a server that was killed.

    Nothing tells whose they are, but each server makes its own when it begins to load: while another one
    runs that was not loading long before, all of them are kept.

    Args:
        since: when the server was launched (seconds since the epoch).
        folder: where they lie.
    """
    for process in psutil.process_iter(["name", "create_time"]):
        if process.info["name"] == "tritonserver" and process.info["create_time"] > since - _LOADING_S:
            return []
    removed = []
    for path in sorted(folder.glob("python_env_*")):
        # Another user's, one that is not empty, or gone already.
        with contextlib.suppress(OSError):
            if path.stat().st_mtime >= since:
                path.rmdir()
                removed.append(path)
    return removed


def _temporary_folders() -> set[str]:
    """The folders that live processes were told to use."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            found.add(process.environ().get("TMPDIR", ""))
    return found
