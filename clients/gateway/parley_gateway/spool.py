"""Recordings on their way: where their bytes lie, and how many there may be in all.

A body goes to a file as it comes, and so do the samples that it is decoded to. Both count in one budget of
bytes for the whole process. The files have no names: whatever way a request or the process ends, the kernel
frees them.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray
from prometheus_client import Gauge
from starlette.datastructures import Headers

from parley_gateway.errors import GatewaySettingsError, UploadsFullError
from parley_gateway.settings_sections import Seconds, Size
from parley_gateway.shares import ShareLimiter, is_within_share

ResultT = TypeVar("ResultT")
# Bytes of a body that are kept in memory until they are written together.
_BUFFER = 262_144
_HEAD = 16
# Copies of a recording's samples that exist while they are sent to a server: the protobuf message, its
# serialised form, and gRPC's own.
_COPIES = 3


class UploadSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Recordings that clients send, while they are received, decoded and passed on."""

    folder: str = ""
    """Folder of recordings; it must exist. Empty: `$TMPDIR` or `/tmp`."""
    disk_bytes: Size = 2_147_483_648
    """All recordings with their decoded samples; more is answered with 503 ([shares](gateway.md#shares))."""
    memory_bytes: Size = 268_435_456
    """Memory for recordings that are sent to a server, 3 times the size of their samples; others wait."""
    wait_s: Seconds = 30.0
    """How long a recording waits for this memory before it is answered with 503."""
    retry_after_s: Seconds = 5.0
    """`Retry-After` of a recording that has no room."""


class Spool:
    """The budgets of all recordings of a process."""

    def __init__(self, settings: UploadSettings, gauge: Gauge) -> None:
        self._settings = settings
        self._folder = Path(settings.folder or tempfile.gettempdir())
        self._gauge = gauge
        self._reserved = 0
        self._held: Counter[str | None] = Counter()
        self._memory = ShareLimiter(settings.memory_bytes)

    @property
    def reserved(self) -> int:
        """Bytes of the budget that are taken."""
        return self._reserved

    def prepare(self) -> None:
        """Check the folder; blocks.

        Raises:
            GatewaySettingsError: no files can be made.
        """
        try:
            descriptor = self.create()
            try:
                os.pwrite(descriptor, b"\0", 0)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise GatewaySettingsError(
                f"uploads.folder: no recording can be kept in {self._folder}: {error.strerror or error}"
            ) from error

    def open(self, owner: str | None = None) -> SpooledFile:
        """A new file, to be entered."""
        return SpooledFile(self, owner)

    def check_room(self, size: int, owner: str | None) -> None:
        """Refuse what has no room now.

        Raises:
            UploadsFullError: it has none.
        """
        held = 0 if owner is None else self._held[owner]
        if not is_within_share(held, size, self._settings.disk_bytes - self._reserved):
            raise self.full("enough recordings are under way already")

    def check_announced(self, headers: Headers, owner: str | None) -> None:
        """Refuse a body by its length before it is read.

        Raises:
            UploadsFullError: there is no room for it now.
        """
        length = headers.get("content-length", "")
        if length.isdecimal():
            self.check_room(int(length), owner)

    def reserve(self, size: int, owner: str | None) -> None:
        """Take bytes out of the budget for an owner; negative ones go back.

        Raises:
            UploadsFullError: they are not there.
        """
        if size > 0:
            self.check_room(size, owner)
        self._reserved += size
        self._held[owner] += size
        if not self._held[owner]:
            del self._held[owner]
        self._gauge.set(self._reserved)

    def full(self, why: str) -> UploadsFullError:
        """The error for what has no room."""
        return UploadsFullError(f"{why}; try again later", retry_after_s=self._settings.retry_after_s)

    def create(self) -> int:
        """The descriptor of a new file without a name; blocks.

        Raises:
            OSError: there can be none.
        """
        with tempfile.TemporaryFile(buffering=0, dir=self._folder) as file:
            return os.dup(file.fileno())

    @asynccontextmanager
    async def samples_of(self, file: SpooledFile) -> AsyncIterator[NDArray[np.int16]]:
        """What a decoder wrote, to be sent to a server; waits for the memory that this takes.

        Args:
            file: of a decoder that has ended.

        Returns:
            i16 ``[n]``, mapped, so that the kernel may drop what is not read.

        Raises:
            UploadsFullError: there was no memory in time.
        """
        samples = await file.samples()
        async with self._memory_for(samples.nbytes * _COPIES, file.owner):
            yield samples

    @asynccontextmanager
    async def bytes_of(self, file: SpooledFile) -> AsyncIterator[bytes]:
        """What a client has sent, to be sent to a server; waits for the memory that this takes.

        Raises:
            UploadsFullError: there was no memory in time.
        """
        async with self._memory_for(file.size * (_COPIES + 1), file.owner):
            yield await file.read(bytes)

    def _memory_for(self, size: int, owner: str | None) -> AbstractAsyncContextManager[None]:
        # A recording that needs more than all memory is sent alone.
        size = min(size, self._settings.memory_bytes)
        late = self.full("too many recordings are being sent")
        return self._memory.take(size, owner, self._settings.wait_s, late)


class SpooledFile:
    """Bytes of one request; when it is left, they are gone."""

    def __init__(self, spool: Spool, owner: str | None = None) -> None:
        self.owner = owner
        self._spool = spool
        self._reserved = 0
        self._buffer = bytearray()
        self._written = 0
        self._descriptor: int | None = None
        self._users = 1
        self.head = b""
        """The first bytes, which identify the format; set by :meth:`finish`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self.drop()

    @property
    def size(self) -> int:
        """Bytes so far."""
        return self._written + len(self._buffer)

    @property
    def descriptor(self) -> int:
        """Descriptor of the file, which :meth:`finish` has made."""
        assert self._descriptor is not None
        return self._descriptor

    def hold(self) -> None:
        """Keep the file, and its bytes in the budget, until :meth:`drop` was called once more.

        Threads and processes still use it when the request that it belongs to has ended.
        """
        self._users += 1

    def hold_until(self, done: asyncio.Future[Any]) -> None:
        """Keep it until something is done."""
        self.hold()
        done.add_done_callback(lambda _: self.drop())

    def drop(self) -> None:
        """One user less."""
        self._users -= 1
        if self._users:
            return
        self.reserve(0)
        self._buffer.clear()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def reserve(self, size: int) -> None:
        """Have ``size`` bytes of the budget in total.

        Raises:
            UploadsFullError: the budget has too few left.
        """
        self._spool.reserve(size - self._reserved, self.owner)
        self._reserved = size

    async def append(self, data: bytes, note: Callable[[bytes], None] | None = None) -> None:
        """Add bytes.

        Args:
            data: the next ones.
            note: called in a thread with what is written, piece by piece.

        Raises:
            UploadsFullError: there is no room for them.
        """
        self.reserve(self._reserved + len(data))
        self._buffer += data
        if len(self._buffer) >= _BUFFER:
            await self.finish(note)

    async def finish(self, note: Callable[[bytes], None] | None = None) -> None:
        """Write what :meth:`append` has kept back; makes the file if there is none.

        Raises:
            UploadsFullError: the disk is full, or cannot be written.
        """
        data, self._buffer = bytes(self._buffer), bytearray()
        if not self._written:
            self.head = data[:_HEAD]

        def write() -> None:
            if self._descriptor is None:
                self._descriptor = self._spool.create()
            done = 0
            while done < len(data):
                done += os.pwrite(self._descriptor, data[done:], self._written + done)
            if note is not None:
                note(data)

        try:
            await self._in_thread(write)
        except OSError as error:
            raise self._spool.full(f"recordings cannot be stored ({error.strerror})") from error
        self._written += len(data)

    async def read(self, work: Callable[[bytes], ResultT]) -> ResultT:
        """What ``work`` makes in a thread of all bytes."""
        return await self._in_thread(lambda: work(os.pread(self.descriptor, self._written, 0)))

    async def samples(self) -> NDArray[np.int16]:
        """The bytes as i16 ``[n]``, mapped."""
        return await self._in_thread(
            lambda: np.frombuffer(mmap.mmap(self.descriptor, 0, access=mmap.ACCESS_READ), "<i2")
        )

    async def _in_thread(self, work: Callable[[], ResultT]) -> ResultT:
        # A thread cannot be cancelled; until it ends, its descriptor must not become another file's.
        self.hold()
        running = asyncio.get_running_loop().run_in_executor(None, work)
        running.add_done_callback(self._thread_ended)
        return await asyncio.shield(running)

    def _thread_ended(self, running: asyncio.Future[ResultT]) -> None:
        self.drop()
        if not running.cancelled():
            running.exception()  # seen, even if its request has gone
