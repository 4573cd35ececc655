"""A server with a disk and a shared memory of its own, which can be filled without harm to others."""

from __future__ import annotations

import os
from pathlib import Path

from harness.network import Host
from harness.servers import Server

from parley.launcher.options import ROOT

DISK_MIB, SHARED_MIB = 192, 256
_DISK = Path("/mnt")
_TEMPORARY = _DISK / "temporary"
_SHARED = Path("/dev/shm")  # noqa: S108 - the kernel's own name for it
_BALLAST = "ballast"
_SMALLEST = 4096
_READY_S = 400.0
"""vLLM inspects its models where it has no cache, and both servers share the processors with the callers."""

# $1 is the folder of the state, $2 vLLM's cache of earlier starts, the rest is the command. `ip netns exec`
# gives the node a mount namespace of its own, in which these file systems end with its last process.
_MOUNT = f"""
set -e
mount -t tmpfs -o size={SHARED_MIB}m parley-shm {_SHARED}
mount -t tmpfs -o size={DISK_MIB}m parley-disk {_DISK}
mkdir {_DISK}/state {_TEMPORARY} {_DISK}/cache
if [ -d "$2" ]; then cp -r "$2" {_DISK}/cache/vllm; fi
mount --bind {_DISK}/state "$1"
shift 2
exec "$@" 2>>{_DISK}/launcher.log
"""


class Place(Server):
    """A server with a small disk and a small shared memory of its own.

    State, log, temporary files, the caches of vLLM, and what the launcher says are on that disk.
    """

    def __init__(self, host: Host, profile: str, folder: Path) -> None:
        self._mounted = ROOT / ".server" / f"perf-{host.name}"
        self._mounted.mkdir(parents=True, exist_ok=True)
        super().__init__(
            host,
            profile,
            folder,
            wrapper=["sh", "-c", _MOUNT, "sh", str(self._mounted), str(ROOT / ".cache" / "vllm")],
            environment={
                "TMPDIR": str(_TEMPORARY),
                "VLLM_CACHE_ROOT": f"{_DISK}/cache/vllm",
                "TORCHINDUCTOR_CACHE_DIR": f"{_DISK}/cache/torchinductor",
            },
            ready_s=_READY_S,
        )

    def state(self, name: str) -> Path:
        """A file of its state, as this process sees it.

        Raises:
            OSError: the server does not run.
        """
        return self._inside(self._mounted) / name

    def fill_disk(self) -> int:
        """Leave no byte on its disk; returns how many were free."""
        return _fill(self._inside(_DISK) / _BALLAST)

    def free_disk(self) -> None:
        """Take away what :meth:`fill_disk` has put there."""
        (self._inside(_DISK) / _BALLAST).unlink(missing_ok=True)

    def fill_shared_memory(self) -> int:
        """Leave no byte in its ``/dev/shm``; returns how many were free."""
        return _fill(self._inside(_SHARED) / _BALLAST)

    def free_shared_memory(self) -> None:
        """Take away what :meth:`fill_shared_memory` has put there."""
        (self._inside(_SHARED) / _BALLAST).unlink(missing_ok=True)

    def _inside(self, path: Path) -> Path:
        """A path of the server's mount namespace.

        Raises:
            OSError: the server does not run.
        """
        pid = self.launcher
        if not pid:
            raise OSError(f"{self.host.name} does not run")
        return Path(f"/proc/{pid}/root{path}")


def _fill(path: Path) -> int:
    """Make a file that takes all space of its file system; returns its size."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        size, step = 0, 1 << 26
        while step >= _SMALLEST:
            try:
                os.posix_fallocate(descriptor, size, step)
                size += step
            except OSError:
                step //= 2
        return size
    finally:
        os.close(descriptor)
