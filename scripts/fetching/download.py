"""One file from the hub to the disk: resumed, checked, and moved into place when it is whole."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import httpx

from fetching.hub import Hub, TransientError, check
from fetching.manifest import FetchError, RemoteFile

PART = ".part"
_BLOCK = 1 << 20
_FULL_ATTEMPTS = 2


@dataclass(frozen=True)
class Source:
    """A commit of a repository of a hub."""

    hub: Hub
    repository: str
    commit: str

    def address(self, path: str) -> str:
        """Where a file is."""
        return f"/{self.repository}/resolve/{quote(self.commit)}/{quote(path)}"


def download(source: Source, file: RemoteFile, folder: Path, arrived: Callable[[int], None]) -> bool:
    """Bring ``file`` into ``folder``.

    What came before an interruption stays in a file beside it and is not fetched again.

    Args:
        source: where from.
        file: what.
        folder: where to.
        arrived: is told how many bytes of the file are there.

    Returns:
        False if the file was there already, whole and right.

    Raises:
        FetchError: it cannot be had, or what comes is not what was promised.
    """
    target = folder / file.name
    if target.is_file() and target.stat().st_size == file.size and matches(target, file):
        arrived(file.size)
        return False
    part = target.with_name(target.name + PART)
    part.parent.mkdir(parents=True, exist_ok=True)
    if length(part) > file.size:  # of another version
        part.unlink()
    for _ in range(_FULL_ATTEMPTS):
        fill(source.hub, source.address(file.name), file, part, arrived)
        if matches(part, file):
            settle(part, target)
            return True
        part.unlink()
    raise FetchError(
        f"{file.name} has a wrong checksum, twice: the hub or the way to it is not to be trusted"
    )


def matches(path: Path, file: RemoteFile) -> bool:
    """Whether a file's content is what was announced."""
    if file.sha256 is not None:
        digest, expected = hashlib.sha256(), file.sha256
    else:
        # The way in which git names a file's content.
        digest, expected = hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False), file.git_blob or ""
    with path.open("rb") as content:
        while block := content.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest() == expected


def settle(part: Path, target: Path) -> None:
    """Give a whole file its name, so that it is whole after a power failure too."""
    with part.open("rb") as whole:
        os.fsync(whole.fileno())
    os.replace(part, target)  # noqa: PTH105 - says what it does


def fill(hub: Hub, address: str, file: RemoteFile, part: Path, arrived: Callable[[int], None]) -> None:
    """Append to ``part`` until it is as long as the file.

    Args:
        hub: the connection.
        address: of the file on it.
        file: what is to come.
        part: what has come.
        arrived: is told how many bytes of the file are there.

    Raises:
        FetchError: it cannot be had.
    """
    retry = hub.retry()
    while (there := length(part)) < file.size or not part.exists():
        if time.monotonic() > hub.deadline:
            raise FetchError(f"the time limit is over; run this again to go on with {file.name}")
        try:
            _request(hub, address, file, part, arrived)
        except TransientError as error:
            if length(part) > there:
                retry.progressed()
            retry.failed(error)
        except httpx.TransportError as error:
            if length(part) > there:
                retry.progressed()
            retry.failed(hub.unreachable(error))
    if there > file.size:
        part.unlink()
        raise FetchError(f"{file.name} is longer than the {file.size} bytes that were announced")


def length(part: Path) -> int:
    """How much of a file is there (bytes)."""
    return part.stat().st_size if part.exists() else 0


def _request(hub: Hub, address: str, file: RemoteFile, part: Path, arrived: Callable[[int], None]) -> None:
    there = length(part)
    headers = {"Accept-Encoding": "identity"}
    if there:
        headers["Range"] = f"bytes={there}-"
    with hub.client.stream("GET", address, headers=headers) as response:
        if response.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
            part.unlink(missing_ok=True)
            raise TransientError("the hub does not know the place to resume at")
        check(response)
        resumed = response.status_code == httpx.codes.PARTIAL_CONTENT
        if resumed and not response.headers.get("Content-Range", "").startswith(f"bytes {there}-"):
            part.unlink(missing_ok=True)
            raise TransientError("the hub resumed at another place than asked")
        # A hub that ignores the range sends the file from its beginning.
        with part.open("ab" if resumed else "wb") as output:
            for block in response.iter_raw():  # as it comes: what waits in a buffer would be lost
                output.write(block)
                arrived(output.tell())
                if output.tell() > file.size:
                    return
                if time.monotonic() > hub.deadline:
                    return
    if length(part) < file.size:
        raise TransientError(f"the connection ended after {length(part)} of {file.size} bytes")
