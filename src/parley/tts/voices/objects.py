"""Small named objects in a folder."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Protocol

from parley.errors import VoiceDamagedError, VoiceStoreError

_UNFINISHED = ".new-"


class Objects(Protocol):
    """A place for small objects. Names are plain: no folders."""

    async def names(self, prefix: str) -> list[str]:
        """Names that begin with ``prefix``, in no order."""
        ...

    async def read(self, name: str) -> bytes:
        """The content of an object.

        Raises:
            FileNotFoundError: it is not there.
            VoiceDamagedError: it is larger than is ever written.
            VoiceStoreError: the place failed or was late.
        """
        ...

    async def write(self, name: str, data: bytes) -> None:
        """Write an object as a whole: readers see all of it or nothing."""
        ...

    async def delete(self, name: str) -> None:
        """Remove an object; it need not be there."""
        ...


class FolderObjects:
    """Files of one folder.

    Args:
        folder: made with the first object.
        max_bytes: larger files are not read.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes

    async def names(self, prefix: str) -> list[str]:
        """See :class:`Objects`."""
        return await asyncio.to_thread(self._names, prefix)

    async def read(self, name: str) -> bytes:
        """See :class:`Objects`."""
        return await asyncio.to_thread(self._read, self._path(name))

    async def write(self, name: str, data: bytes) -> None:
        """See :class:`Objects`."""
        await asyncio.to_thread(self._write, self._path(name), data)

    async def delete(self, name: str) -> None:
        """See :class:`Objects`."""
        try:
            await asyncio.to_thread(self._path(name).unlink, missing_ok=True)
        except OSError as error:
            raise VoiceStoreError(f"{self._folder} cannot be changed: {error}") from error

    def _path(self, name: str) -> Path:
        # Names are made from checked ids; this is the second lock on the same door.
        if not name or Path(name).name != name or name.startswith("."):
            raise ValueError(f"{name!r} is no plain name")
        return self._folder / name

    def _names(self, prefix: str) -> list[str]:
        try:
            return [path.name for path in self._folder.iterdir() if path.name.startswith(prefix)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise VoiceStoreError(f"{self._folder} cannot be read: {error}") from error

    def _read(self, path: Path) -> bytes:
        try:
            with path.open("rb") as file:
                data = file.read(self._max_bytes + 1)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise VoiceStoreError(f"{path} cannot be read: {error}") from error
        if len(data) > self._max_bytes:
            raise VoiceDamagedError(f"{path.name} has more than {self._max_bytes} bytes")
        return data

    def _write(self, path: Path, data: bytes) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            descriptor, fresh = tempfile.mkstemp(prefix=_UNFINISHED, dir=self._folder)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                Path(fresh).chmod(0o644)
                Path(fresh).replace(path)
            except BaseException:
                Path(fresh).unlink(missing_ok=True)
                raise
        except OSError as error:
            raise VoiceStoreError(f"{path} cannot be written: {error}") from error
