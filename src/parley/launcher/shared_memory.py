"""The server's regions in the shared memory file system.

Triton leaves regions behind when a model process or the server itself is killed. Every server
names its regions ``parley-<namespace>-<pid>-<count>-…`` after the process that launched it, so
that what a dead launcher left can be told from what a live one uses.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
from pathlib import Path

import psutil

from parley.launcher.errors import SharedMemoryTooSmallError
from parley.launcher.models import CONTROL_REPOSITORY, count_instances, model_folders
from parley.launcher.options import ServerOptions
from parley.triton.model_control import CONTROL_MODEL

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - this is the kernel's own name for it
GROWTH_BYTES = 3 << 20
"""Room for one instance beyond its first region: audio and text in flight (bytes)."""

_counter = itertools.count(1)
_REGION = re.compile(r"^parley-(?P<namespace>\d+)-(?P<pid>\d+)-\d+-")


def new_prefix() -> str:
    """A prefix that no other server uses, in this process or another."""
    return f"parley-{_namespace()}-{os.getpid()}-{next(_counter)}-"


def _namespace() -> int:
    """Process numbers mean something only within this namespace."""
    return Path("/proc/self/ns/pid").stat().st_ino


def remove_regions(prefix: str, folder: Path = SHARED_MEMORY) -> list[Path]:
    """Remove the regions of one server that has ended; returns them."""
    found = sorted(folder.glob(f"{prefix}*"))
    for path in found:
        path.unlink(missing_ok=True)
    return found


def remove_stale_regions(folder: Path = SHARED_MEMORY) -> list[Path]:
    """Remove what dead launchers left: never the regions of a live process.

    A region is kept if its launcher lives, if it belongs to another user or process namespace,
    or if any process still maps it.
    """
    candidates = [path for path in sorted(folder.glob("parley-*")) if is_abandoned(path)]
    if not candidates:
        return []
    mapped = _mapped_files()
    stale = [path for path in candidates if str(path) not in mapped]
    for path in stale:
        path.unlink(missing_ok=True)
    return stale


def is_abandoned(path: Path) -> bool:
    """Whether a file or folder with a server's prefix is this user's and its launcher has died."""
    match = _REGION.match(path.name)
    if match is None or int(match["namespace"]) != _namespace() or psutil.pid_exists(int(match["pid"])):
        return False
    try:
        return path.stat().st_uid == os.getuid()
    except FileNotFoundError:
        return False


def _mapped_files() -> set[str]:
    mapped: set[str] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            text = maps.read_text()
        except OSError:  # gone, or another user's: theirs were excluded by owner
            continue
        mapped.update(line.split(None, 5)[5] for line in text.splitlines() if "/parley-" in line)
    return mapped


def needed_bytes(options: ServerOptions) -> int:
    """Shared memory that the chosen models need: one region per instance and room to grow."""
    folders = [*model_folders(options), CONTROL_REPOSITORY / CONTROL_MODEL]
    instances = sum(count_instances(folder, options.profile) for folder in folders)
    return instances * (options.shm_region_bytes + GROWTH_BYTES)


def check_capacity(options: ServerOptions, folder: Path = SHARED_MEMORY) -> None:
    """Refuse to start where the regions cannot fit.

    Raises:
        SharedMemoryTooSmallError: less is free than the models need.
    """
    needed = needed_bytes(options)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise SharedMemoryTooSmallError(
            f"{folder} has {free >> 20} MiB free, but the models' shared memory needs {needed >> 20} MiB. "
            "In a container start it with --shm-size=256m (docker) or a memory volume on /dev/shm; "
            f"elsewhere: sudo mount -o remount,size=256m {folder}"
        )
