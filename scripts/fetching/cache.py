"""Files that were brought once, by their checksums: every checkout of the machine takes them from here."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fetching.download import PART, length, matches, settle
from fetching.manifest import FetchError, PinnedFile

VARIABLE = "PARLEY_WEIGHTS_CACHE"
_POLL_S = 0.2


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where the cache is: ``PARLEY_WEIGHTS_CACHE``, else below the person's folder for caches."""
    if named := environment.get(VARIABLE):
        return Path(named).expanduser().absolute()
    caches = environment.get("XDG_CACHE_HOME", "")
    # The specification of that variable: a relative path is to be ignored.
    folder = Path(caches) if os.path.isabs(caches) else Path.home() / ".cache"  # noqa: PTH117 - "" too
    return folder / "parley" / "weights"


class Cache:
    """A folder of files named by their SHA-256; what has come of others is beside them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def work(self) -> Path:
        """For packages on their way; whoever has the lock may empty it."""
        return self.folder / "work"

    @contextmanager
    def locked(self, deadline: float, note: Callable[[str], None]) -> Iterator[None]:
        """Wait until no other process brings files, and keep others out.

        Args:
            deadline: when to give up, on the clock ``time.monotonic``.
            note: is told once that there is a wait.

        Raises:
            FetchError: the other process was not done in time.
        """
        with alone_in(self.folder, deadline, note):
            shutil.rmtree(self.work, ignore_errors=True)
            try:
                yield
            finally:
                shutil.rmtree(self.work, ignore_errors=True)

    def path(self, file: PinnedFile) -> Path:
        """Where a whole file is."""
        return self.folder / file.sha256

    def part(self, file: PinnedFile) -> Path:
        """Where a file is that has not come wholly."""
        return self.folder / (file.sha256 + PART)

    def missing(self, file: PinnedFile) -> int:
        """How much of a file is to come (bytes)."""
        whole = self.path(file)
        if length(whole) == file.size and whole.exists():
            return 0
        return file.size - min(length(self.part(file)), file.size)

    def has(self, file: PinnedFile) -> bool:
        """Whether a file is there as it should be; one that is not is removed."""
        whole = self.path(file)
        if not whole.is_file():
            return False
        if whole.stat().st_size == file.size and matches(whole, file.remote):
            return True
        whole.unlink()
        return False

    def settle(self, file: PinnedFile) -> bool:
        """Take what has come for the file if it is; else remove it.

        Returns:
            Whether it is.
        """
        part = self.part(file)
        if length(part) != file.size or not matches(part, file.remote):
            part.unlink(missing_ok=True)
            return False
        part.chmod(0o444)  # checkouts share it
        settle(part, self.path(file))
        return True

    def place(self, file: PinnedFile, target: Path) -> None:
        """Give a checkout a file: as a link, or as a copy where the file system is another one."""
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = target.with_name(f".{target.name}.new")
        beside.unlink(missing_ok=True)
        try:
            beside.hardlink_to(self.path(file))
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES):
                raise
            shutil.copyfile(self.path(file), beside)
        os.replace(beside, target)  # noqa: PTH105 - says what it does


@contextmanager
def alone_in(folder: Path, deadline: float, note: Callable[[str], None]) -> Iterator[None]:
    """Wait until no other process works in a folder, and keep others out; see :meth:`Cache.locked`."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        waits = False
        while not _try_lock(lock.fileno()):
            if not waits:
                note(f"waiting for another process that works in {folder}")
            waits = True
            if time.monotonic() > deadline:
                raise FetchError(f"another process still works in {folder}")
            time.sleep(_POLL_S)
        yield


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
