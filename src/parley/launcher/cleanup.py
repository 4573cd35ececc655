"""Shared memory and temporary files that outlive a killed server.

Triton leaves shared memory regions behind when a model process or the server itself is killed. Every server
names its regions ``parley-<namespace>-<pid>-<count>-…`` after the process that launched it, so
that regions of a dead launcher differ from those in use. Its temporary folder is named likewise.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import stat
import tempfile
from pathlib import Path

import psutil

from parley.launcher.errors import SharedMemoryTooSmallError
from parley.launcher.models import CONTROL_REPOSITORY, count_instances, model_folders
from parley.launcher.options import ServerOptions
from parley.triton.model_control import CONTROL_MODEL

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - this is the kernel's own name for it
GROWTH_BYTES = 3 << 20
"""Room for one instance beyond its first region: audio and text in flight."""

_REGION = re.compile(r"^parley-(?P<namespace>\d+)-(?P<pid>\d+)-\d+-")
_NAME = "tmp"

_counter = itertools.count(1)


def new_prefix() -> str:
    """A prefix that no other server uses, in this process or another."""
    return f"parley-{_namespace()}-{os.getpid()}-{next(_counter)}-"


def _namespace() -> int:
    """Process numbers mean something only within this namespace."""
    return Path("/proc/self/ns/pid").stat().st_ino


def protect_regions(prefix: str, folder: Path = SHARED_MEMORY) -> int:
    """Keep other users of the machine from opening the regions of a server, which hold audio and texts.

    Triton makes them readable by all, whatever the umask is. A program that opens one in the moment before
    this can read it until the server ends.

    Returns:
        How many regions there are.
    """
    number = 0
    for path in folder.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            found = path.lstat()
            # Other users may make files and links of this name; in a sticky folder they cannot replace these.
            is_own = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
            number += is_own
            if is_own and found.st_mode & 0o077:
                path.chmod(0o600)
    return number


def remove_left(prefix: str, memory: Path = SHARED_MEMORY) -> None:
    """Remove regions and temporary folder of a server that has ended; empty: there is none."""
    if _REGION.fullmatch(prefix):
        for path in memory.glob(f"{prefix}*"):
            path.unlink(missing_ok=True)
        shutil.rmtree(Path(tempfile.gettempdir()) / f"{prefix}{_NAME}", ignore_errors=True)


def remove_stale(memory: Path = SHARED_MEMORY, temporary: Path | None = None) -> list[Path]:
    """Remove the regions and temporary folders of dead launchers; returns them.

    They are kept if the launcher lives, if they belong to another user or process namespace, or if a process
    of the server lives: all have its temporary folder in their environment.
    """
    found = [*memory.glob("parley-*"), *(temporary or Path(tempfile.gettempdir())).glob(f"parley-*-{_NAME}")]
    abandoned = sorted(path for path in found if is_abandoned(path))
    used = _used_prefixes() if abandoned else set()
    stale = [path for path in abandoned if _prefix(path.name) not in used]
    for path in stale:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return stale


def is_abandoned(path: Path) -> bool:
    """Whether a file or folder with a server's prefix belongs to this user and its launcher has died."""
    match = _REGION.match(path.name)
    if match is None or int(match["namespace"]) != _namespace() or psutil.pid_exists(int(match["pid"])):
        return False
    try:
        return path.stat().st_uid == os.getuid()
    except FileNotFoundError:
        return False


def _prefix(name: str) -> str:
    found = _REGION.match(name)
    return found[0] if found else ""


def _used_prefixes() -> set[str]:
    """Those of the servers of which a process lives."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            found.add(_prefix(Path(process.environ().get("TMPDIR", "")).name))
    return found


def needed_bytes(options: ServerOptions) -> int:
    """Shared memory that the chosen models need: one region per instance and room to grow."""
    folders = [*model_folders(options), CONTROL_REPOSITORY / CONTROL_MODEL]
    instances = sum(count_instances(folder, options.profile) for folder in folders)
    return instances * (options.shm_region_bytes + GROWTH_BYTES)


def check_capacity(options: ServerOptions, folder: Path = SHARED_MEMORY) -> None:
    """Check that the regions of all models fit.

    Raises:
        SharedMemoryTooSmallError: too little is free.
    """
    needed = needed_bytes(options)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise SharedMemoryTooSmallError(
            f"{folder} has {free >> 20} MiB free, but the models' shared memory needs {needed >> 20} MiB. "
            "In a container start it with --shm-size=256m (docker) or a memory volume on /dev/shm; "
            f"elsewhere: sudo mount -o remount,size=256m {folder}"
        )


def make_folder(prefix: str) -> Path:
    """Make the temporary folder of the server whose regions have this prefix."""
    folder = Path(tempfile.gettempdir()) / f"{prefix}{_NAME}"
    folder.mkdir(mode=0o700)
    return folder
