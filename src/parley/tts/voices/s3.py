"""Small named objects in a bucket of an S3-compatible object store.

The client is obstore (MIT; bindings to the object_store crate of Apache Arrow): one wheel of
6 MB without dependencies of its own, with timeouts, retries and asynchronous calls. boto3 would
bring three packages and threads, aiobotocore a pinned botocore. It is an optional extra
(``parley[s3]``), imported when a store of this kind is opened.

Credentials come from the usual environment and nowhere else: ``AWS_ACCESS_KEY_ID`` and
``AWS_SECRET_ACCESS_KEY`` (``AWS_SESSION_TOKEN``), a web identity token, a container's or an
instance's role.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import ModuleType
from typing import Any

from parley.errors import (
    ModelLoadingError,
    VoiceDamagedError,
    VoiceStoreError,
    VoiceStoreRefusedError,
)

_log = logging.getLogger(__name__)
SCHEME = "s3://"
_REFUSAL = re.compile(r"status code: 40[134]\b")
_RETRIES = 3
_PAGE = 1_000
_ADDRESS = re.compile(r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(/(?P<prefix>[\w./-]*))?")


@dataclass(frozen=True)
class S3Address:
    """Where a bucket is."""

    url: str
    """``s3://bucket/prefix``."""
    endpoint: str = ""
    """``http(s)://host:port`` of a store that is not Amazon's; empty: ``AWS_ENDPOINT_URL``, or Amazon."""
    region: str = ""
    """Empty: ``AWS_REGION``, or us-east-1."""


class S3Objects:
    """Objects of one bucket, under a prefix; see :class:`parley.tts.voices.objects.Objects`.

    A call is repeated up to three times when the store is away, answers 5xx or asks to slow down,
    all within ``timeout_s``.

    Args:
        address: of the bucket.
        max_bytes: larger objects are not read.
        timeout_s: of each call as a whole.

    Raises:
        ModelLoadingError: the address is not usable, or the client is not installed.
    """

    def __init__(self, address: S3Address, max_bytes: int, *, timeout_s: float = 10.0) -> None:
        match = _ADDRESS.fullmatch(address.url)
        if match is None:
            raise ModelLoadingError(
                f"{address.url!r} is no address of a bucket: s3://BUCKET or s3://BUCKET/PREFIX"
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
                # Plain HTTP only where the operator wrote it.
                "allow_http": address.endpoint.startswith("http://"),
            },
            "disable_bulk_delete": True,  # which not every compatible store has
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
        """See :class:`parley.tts.voices.objects.Objects`."""
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
        """See :class:`parley.tts.voices.objects.Objects`."""
        async with self._call("read"):
            answer = await self._library.get_async(self._store, name)
            if answer.meta["size"] > self._max_bytes:
                raise VoiceDamagedError(f"{name} has {answer.meta['size']} bytes; at most {self._max_bytes}")
            return bytes(await answer.bytes_async())

    async def write(self, name: str, data: bytes) -> None:
        """See :class:`parley.tts.voices.objects.Objects`."""
        async with self._call("written"):
            await self._library.put_async(self._store, name, data, use_multipart=False)

    async def delete(self, name: str) -> None:
        """See :class:`parley.tts.voices.objects.Objects`."""
        try:
            async with self._call("deleted"):
                await self._library.delete_async(self._store, name)
        except FileNotFoundError:
            pass  # what was wanted

    @asynccontextmanager
    async def _call(self, done: str) -> AsyncIterator[None]:
        errors = self._library.exceptions
        try:
            async with asyncio.timeout(self._timeout_s):
                yield
        except errors.NotFoundError as error:
            raise FileNotFoundError(done) from error
        except errors.BaseError as error:
            # For the operator; callers, who may be anybody, are not told about the network.
            _log.warning("%s cannot be %s: %s", self._where, done, str(error).partition("\n")[0])
            refused = isinstance(error, errors.PermissionDeniedError | errors.UnauthenticatedError)
            # Lists that fail have no kinds of their own.
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
            "voices in an object store need the package obstore: install parley[s3]"
        ) from error
