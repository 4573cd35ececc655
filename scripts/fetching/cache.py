"""Files that were brought once, by their checksums: every checkout of the machine takes them from here.

Several users may share the folder. Another user's file is not relied on: it is read through one handle, and
checked as it is copied. Only a user's own files are linked.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path

from fetching.hub import PART, complete, length, matches
from fetching.manifest import FetchError, PinnedFile

VARIABLE = "PARLEY_WEIGHTS_CACHE"
_POLL_S = 0.2
_BLOCK = 1 << 20
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
# A link that would not be one's own file, a device or a pipe is nothing to wait for or to follow.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NOT_READABLE = (errno.ENOENT, errno.ELOOP, errno.EACCES, errno.ENXIO)
_NO_LINK = (
    *(errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES),
    errno.ENOENT,  # removed since it was opened
)


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """``PARLEY_WEIGHTS_CACHE``, else a folder in the user's folder for caches."""
    if named := environment.get(VARIABLE):
        return Path(named).expanduser().absolute()
    caches = environment.get("XDG_CACHE_HOME", "")
    # The specification of that variable: a relative path is to be ignored.
    folder = Path(caches) if os.path.isabs(caches) else Path.home() / ".cache"  # noqa: PTH117 - "" too
    return folder / "parley" / "weights"


class Cache:
    """A folder of files named by their SHA-256; incomplete files are in a folder of each user's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def own(self) -> Path:
        """Writable for this user only: the lock, incomplete files, and files whose shared name is taken."""
        return self.folder / f"user-{os.geteuid()}"

    @property
    def work(self) -> Path:
        """For packages while they are read; emptied by the process with the lock."""
        return self.own / "work"

    @contextmanager
    def locked(self, deadline: float, note: Callable[[str], None]) -> Iterator[None]:
        """Wait until no other process of this user downloads, and keep others out.

        Args:
            deadline: on the clock ``time.monotonic``.
            note: called once if there is a wait.

        Raises:
            FetchError: the deadline has passed, or other users may replace files in the folder.
        """
        self._check_folders()
        with alone_in(self.own, deadline, note):
            shutil.rmtree(self.work, ignore_errors=True)
            try:
                yield
            finally:
                shutil.rmtree(self.work, ignore_errors=True)

    def part(self, file: PinnedFile) -> Path:
        """Path of an incomplete file."""
        return self.own / (file.sha256 + PART)

    def missing(self, file: PinnedFile) -> int:
        """Bytes still to be downloaded of a file that is not there."""
        return file.size - min(length(self.part(file)), file.size)

    def has(self, file: PinnedFile) -> bool:
        """Whether a file is there with its checksum; a wrong one is removed."""
        for path in self._places(file):
            content = _open(path, file.size)
            if content is not None:
                with content:
                    if hashlib.file_digest(content, "sha256").hexdigest() == file.sha256:
                        return True
            with suppress(FileNotFoundError, PermissionError, IsADirectoryError):  # or another user's
                path.unlink()
        return False

    def copies(self, file: PinnedFile) -> bool:
        """Whether a file belongs to another user, so that :meth:`place` makes no link."""
        for path in self._places(file):
            if (content := _open(path, file.size)) is not None:
                with content:
                    return not _is_own(os.fstat(content.fileno()))
        return False

    def complete(self, file: PinnedFile) -> bool:
        """Rename a complete download into its place; remove one with a wrong checksum and return False."""
        part = self.part(file)
        if length(part) != file.size or not matches(part, file.remote):
            part.unlink(missing_ok=True)
            return False
        part.chmod(0o444)  # checkouts share it
        own, shared = self._places(file)
        try:
            complete(part, shared)
        except (PermissionError, IsADirectoryError):
            complete(part, own)  # another user has put something else there
        return True

    def place(self, file: PinnedFile, target: Path) -> None:
        """Link a file of this user into a checkout, or copy one of another user and check it.

        A linked file is checked afterwards in its new place.

        Raises:
            FetchError: it is not in the cache any more, or has changed.
        """
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f".{target.name}.new")
        draft.unlink(missing_ok=True)
        for path in self._places(file):
            content = _open(path, file.size)
            if content is None:
                continue
            with content:
                if _link(path, content, draft) or _copy(content, file.sha256, draft):
                    draft.replace(target)
                    return
        raise FetchError(f"{file.name} has changed in {self.folder} since it was checked; run this again")

    def _places(self, file: PinnedFile) -> tuple[Path, Path]:
        """Paths of a complete file: the user's own and the shared one."""
        return self.own / file.sha256, self.folder / file.sha256

    def _check_folders(self) -> None:
        """Make the folders; refuse those in which other users could replace files."""
        self.folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        status = self.folder.stat()
        elsewhere = f"name another folder with {VARIABLE}"
        if status.st_uid not in (0, os.geteuid()):
            raise FetchError(
                f"the cache {self.folder} belongs to another user, who could replace files in it: {elsewhere}"
            )
        if status.st_mode & _OTHERS_WRITE and not status.st_mode & stat.S_ISVTX:
            raise FetchError(
                f"others may replace files in the cache {self.folder} ({stat.filemode(status.st_mode)}): "
                f"`chmod go-w {self.folder}` keeps it to one user, `chmod +t {self.folder}` lets several "
                f"share it; or {elsewhere}"
            )
        with suppress(FileExistsError):
            self.own.mkdir(mode=0o700)
        status = self.own.lstat()
        private = stat.S_ISDIR(status.st_mode) and not status.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
        if not private or status.st_uid != os.geteuid():
            raise FetchError(
                f"{self.own} is not a folder that only this user can use: remove it, or {elsewhere}"
            )


@contextmanager
def alone_in(folder: Path, deadline: float, note: Callable[[str], None]) -> Iterator[None]:
    """Wait until no other process works in a folder, and keep others out; see :meth:`Cache.locked`."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        waits = False
        while not _try_lock(lock):
            if not waits:
                note(f"waiting for another process that works in {folder}")
            waits = True
            if time.monotonic() > deadline:
                raise FetchError(f"another process still works in {folder}")
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(lock)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open(path: Path, size: int) -> BufferedReader | None:
    """A regular file of this size, not through a link; None: there is none that is readable."""
    try:
        descriptor = os.open(path, _READ)
    except OSError as error:
        if error.errno in _NOT_READABLE:
            return None
        raise
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size != size:
        os.close(descriptor)
        return None
    return open(descriptor, "rb")  # noqa: PTH123 - a descriptor


def _is_own(status: os.stat_result) -> bool:
    """Whether only this user can change a file."""
    return status.st_uid == os.geteuid() and not status.st_mode & _OTHERS_WRITE


def _link(path: Path, content: BufferedReader, draft: Path) -> bool:
    """Link a file if it belongs to the user and is still the one that was opened."""
    status = os.fstat(content.fileno())
    if not _is_own(status):
        return False
    try:
        draft.hardlink_to(path)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        return False
    if os.path.samestat(draft.lstat(), status):
        return True
    draft.unlink()
    return False


def _copy(content: BufferedReader, sha256: str, draft: Path) -> bool:
    """Copy a file; returns whether its checksum is right."""
    digest = hashlib.sha256()
    try:
        with draft.open("xb") as output:
            while block := content.read(_BLOCK):
                digest.update(block)
                output.write(block)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    if digest.hexdigest() == sha256:
        return True
    draft.unlink()
    return False
