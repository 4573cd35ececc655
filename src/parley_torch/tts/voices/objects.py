"""Small named objects in a folder or in a bucket of an S3-compatible object store.

The client for buckets is obstore (MIT; bindings to the object_store crate of Apache Arrow): one wheel of
6 MB without dependencies of its own, with timeouts, retries and asynchronous calls. boto3 would
bring three packages and threads, aiobotocore a pinned botocore. It is an optional extra
(``s3``), imported when a store of this kind is opened.

Credentials come from the usual environment and nowhere else: ``AWS_ACCESS_KEY_ID`` and
``AWS_SECRET_ACCESS_KEY`` (``AWS_SESSION_TOKEN``), a web identity token, a container's or an
instance's role.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import re
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from parley.errors import (
    ModelLoadingError,
    VoiceDamagedError,
    VoiceStoreError,
    VoiceStoreRefusedError,
)

SCHEME = "s3://"
_REFUSAL = re.compile(r"status code: 40[134]\b")
_RETRIES = 3
_PAGE = 1_000
_ADDRESS = re.compile(r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(/(?P<prefix>[\w./-]*))?")
_UNFINISHED = ".new-"
_log = logging.getLogger("parley.torch")


class Objects(Protocol):
    """Storage of small objects. Names are plain: no folders."""

    async def names(self, prefix: str) -> list[str]:
        """Names that begin with ``prefix``, in any order."""
        ...

    async def read(self, name: str) -> bytes:
        """The content of an object.

        Raises:
            FileNotFoundError: it does not exist.
            VoiceDamagedError: it is larger than any object that is written.
            VoiceStoreError: the storage failed or was late.
        """
        ...

    async def write(self, name: str, data: bytes) -> None:
        """Write an object atomically."""
        ...

    async def delete(self, name: str) -> None:
        """Delete an object, if it exists."""
        ...


class FolderObjects:
    """Files of one folder.

    The first object creates the folder. Files of more than ``max_bytes`` are not read.
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
        # A second check: names are made of checked ids.
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


@dataclass(frozen=True)
class S3Address:
    """Address of a bucket."""

    url: str
    """``s3://bucket/prefix``."""
    endpoint: str = ""
    """``http(s)://host:port`` of a store that is not Amazon's; empty: ``AWS_ENDPOINT_URL``, or Amazon."""
    region: str = ""
    """Empty: ``AWS_REGION``, or us-east-1."""


class S3Objects:
    """Objects of one bucket, under a prefix; see :class:`Objects`.

    A call is repeated up to three times when the store is unreachable, answers 5xx or asks to slow down,
    all within ``timeout_s``.

    Objects of more than ``max_bytes`` are not read.

    Raises:
        ModelLoadingError: the address is not usable, or the client is not installed.
    """

    def __init__(self, address: S3Address, max_bytes: int, *, timeout_s: float = 10.0) -> None:
        match = _ADDRESS.fullmatch(address.url)
        if match is None:
            raise ModelLoadingError(
                f"{address.url!r} is not the address of a bucket: s3://BUCKET or s3://BUCKET/PREFIX"
            )
        self._where = address.url
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._library = _import()
        options: dict[str, Any] = {
            "bucket": match["bucket"],
            "prefix": (match["prefix"] or "").strip("/") or None,
            "client_options": {
                "timeout": timedelta(seconds=timeout_s),
                "connect_timeout": timedelta(seconds=min(5.0, timeout_s)),
                # Plain HTTP only if the operator's address has it.
                "allow_http": address.endpoint.startswith("http://"),
            },
            "disable_bulk_delete": True,  # not every compatible store supports it
            "retry_config": {"max_retries": _RETRIES, "retry_timeout": timedelta(seconds=timeout_s)},
        }
        if address.endpoint:
            options["endpoint"] = address.endpoint
        if address.region:
            options["region"] = address.region
        try:
            self._store = self._library.store.S3Store(**options)
        except (self._library.exceptions.BaseError, ValueError, TypeError) as error:
            raise ModelLoadingError(f"{address.url} cannot be opened: {error}") from error

    async def names(self, prefix: str) -> list[str]:
        """See :class:`Objects`."""
        found: list[str] = []
        async with self._call("listed"):
            # The client's own prefixes are whole folders; names are in order, so this is one page.
            pages = self._library.list(self._store, offset=prefix or None, chunk_size=_PAGE)
            async for page in pages:
                names = [entry["path"] for entry in page]
                found += [name for name in names if name.startswith(prefix)]
                if prefix and names and not names[-1].startswith(prefix):
                    break
        return found

    async def read(self, name: str) -> bytes:
        """See :class:`Objects`."""
        async with self._call("read"):
            answer = await self._library.get_async(self._store, name)
            if answer.meta["size"] > self._max_bytes:
                raise VoiceDamagedError(f"{name} has {answer.meta['size']} bytes; at most {self._max_bytes}")
            return bytes(await answer.bytes_async())

    async def write(self, name: str, data: bytes) -> None:
        """See :class:`Objects`."""
        async with self._call("written"):
            await self._library.put_async(self._store, name, data, use_multipart=False)

    async def delete(self, name: str) -> None:
        """See :class:`Objects`."""
        try:
            async with self._call("deleted"):
                await self._library.delete_async(self._store, name)
        except FileNotFoundError:
            pass

    @asynccontextmanager
    async def _call(self, done: str) -> AsyncIterator[None]:
        errors = self._library.exceptions
        try:
            async with asyncio.timeout(self._timeout_s):
                yield
        except errors.NotFoundError as error:
            raise FileNotFoundError(done) from error
        except errors.BaseError as error:
            # For the operator; the error to the client does not describe the network.
            _log.warning("%s cannot be %s: %s", self._where, done, str(error).partition("\n")[0])
            refused = isinstance(error, errors.PermissionDeniedError | errors.UnauthenticatedError)
            # Failed lists raise no specific errors.
            kind = VoiceStoreRefusedError if refused or _REFUSAL.search(str(error)) else VoiceStoreError
            raise kind(f"the store of voices cannot be {done}") from error
        except TimeoutError as error:
            raise VoiceStoreError(f"the store of voices was not {done} in {self._timeout_s:g} s") from error


def _import() -> ModuleType:
    try:
        for part in ("exceptions", "store"):
            importlib.import_module(f"obstore.{part}")
        return importlib.import_module("obstore")
    except ImportError as error:
        raise ModelLoadingError(
            "voices in an object store need the package obstore; "
            "install it in the checkout with: pip install '.[s3]'"
        ) from error
