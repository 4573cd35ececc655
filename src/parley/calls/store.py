"""Recordings of calls in a bucket of an S3-compatible object store."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from parley.errors import ModelLoadingError

if TYPE_CHECKING:
    from obstore import ReadableFile

OpenFile: TypeAlias = "BufferedReader | ReadableFile"
"""A file of a call, here or in the store."""
_ADDRESS = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/([\w./-]*))?")
_TIMEOUT = timedelta(seconds=30)
_CONNECT = timedelta(seconds=5)
_RETRIES = 3
_REFUSED = re.compile(r" status code: 4(?:00|13)\b")
"""Of an error that is of these files (``EINVAL``): others may be taken."""


class CallStore:
    """Files of calls below ``s3://BUCKET/PREFIX``, a folder for each call. All methods wait for the network.

    Credentials, region, and the address of a store that is not Amazon's come from ``AWS_`` variables.

    Raises:
        ModelLoadingError: the address is none, or the package obstore is missing.
    """

    def __init__(self, url: str) -> None:
        if (address := _ADDRESS.fullmatch(url)) is None:
            raise ModelLoadingError(f"{url!r} is not the address of a bucket: s3://BUCKET/PREFIX")
        try:
            import obstore  # noqa: PLC0415 - few servers need it
            from obstore.exceptions import BaseError  # noqa: PLC0415
            from obstore.store import S3Store  # noqa: PLC0415
        except ImportError as error:
            raise ModelLoadingError("calls_store needs the package obstore: pip install '.[s3]'") from error
        self._url = url
        self._obstore = obstore
        self._failure = BaseError
        plain = os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
        self._store = S3Store(
            address[1],
            prefix=(address[2] or "").strip("/") or None,
            client_options={"timeout": _TIMEOUT, "connect_timeout": _CONNECT, "allow_http": plain},
            disable_bulk_delete=True,  # not every compatible store supports it
            retry_config={"max_retries": _RETRIES, "retry_timeout": _TIMEOUT},
        )

    def upload(self, folder: Path) -> None:
        """Store the files of a call, but for hidden ones.

        Raises:
            OSError: the store failed, as from the other methods.
        """
        with self._errors():
            for path in folder.glob("[!.]*"):
                self._obstore.put(self._store, f"{folder.name}/{path.name}", path)

    def download(self, entry: str, folder: Path, name: str = "") -> None:
        """Write the files of a call, or a named one, into a folder; none is a ``FileNotFoundError``."""
        with self._errors():
            if not (keys := [f"{entry}/{name}"] if name else self.names(entry)):
                raise FileNotFoundError(f"{self._url}: {entry}")
            for key in keys:
                with (folder / Path(key).name).open("wb") as file:
                    for piece in self._obstore.get(self._store, key):
                        file.write(piece)

    def open(self, entry: str, name: str) -> ReadableFile:
        """A file of a call, of which only what is read is fetched; its methods raise ``OSError`` as well."""
        with self._errors():
            return self._obstore.open_reader(self._store, f"{entry}/{name}")

    def delete(self, entry: str) -> None:
        """Delete the files of a call, if there are some."""
        with self._errors():
            for name in self.names(entry):
                self._obstore.delete(self._store, name)

    def names(self, entry: str) -> list[str]:
        """The files of a call."""
        with self._errors():
            return [one["path"] for one in self._obstore.list(self._store, prefix=f"{entry}/").collect()]

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except self._failure as error:
            text = f"{self._url}: {str(error).partition(chr(10))[0]}"
            raise (OSError(errno.EINVAL, text) if _REFUSED.search(text) else OSError(text)) from error
