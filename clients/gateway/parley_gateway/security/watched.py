"""Files that are read again when they change, without a restart."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from parley_gateway.errors import GatewaySettingsError

_LOG = logging.getLogger(__name__)
_LOOK_EVERY_S = 1.0
_NOT_SEEN = (0, 0, 0)

T = TypeVar("T")


class WatchedFile(Generic[T]):
    """What a file holds.

    It is looked at once a second while it is asked for, and read when its time, size or place has changed. A
    file that cannot be read any more, or not as it is now, changes nothing: the log says so, and what was
    read before still counts.

    Args:
        path: The file.
        parse: Makes of its bytes what it holds; raises :class:`GatewaySettingsError`.
        clock: Seconds; only for how often the file is looked at.

    Raises:
        GatewaySettingsError: the file cannot be used at the start.
    """

    def __init__(
        self, path: Path, parse: Callable[[bytes], T], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path = path
        self._parse = parse
        self._clock = clock
        self.problem = ""
        """Why the file could not be used the last time; empty: it could."""
        self._stamp = self._look()
        self._looked_at = clock()
        self._value = self._read()

    def get(self) -> T:
        """What it holds now."""
        if self._clock() - self._looked_at >= _LOOK_EVERY_S:
            self.check()
        return self._value

    def check(self) -> None:
        """Look at it now, and read it if it has changed."""
        self._looked_at = self._clock()
        self._refresh(force=False)

    def reload(self) -> None:
        """Read it now, changed or not."""
        self._refresh(force=True)

    def _refresh(self, *, force: bool) -> None:
        try:
            seen, self._stamp = self._stamp, _NOT_SEEN
            self._stamp = self._look()
            if self._stamp == seen and not force:
                return
            self._value = self._read()
        except GatewaySettingsError as error:
            # Also a file that cannot be used counts as seen: once in the log is enough.
            if str(error) != self.problem or force:
                _LOG.error("keeping what was read before: %s", error)
            self.problem = str(error)
        else:
            self.problem = ""
            _LOG.info("%s: read again", self._path)

    def _look(self) -> tuple[int, int, int]:
        try:
            found = self._path.stat()
        except OSError as error:
            raise GatewaySettingsError(f"{self._path}: cannot be read: {error}") from error
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> T:
        try:
            raw = self._path.read_bytes()
        except OSError as error:
            raise GatewaySettingsError(f"{self._path}: cannot be read: {error}") from error
        try:
            return self._parse(raw)
        except GatewaySettingsError as error:
            raise GatewaySettingsError(f"{self._path}: {error}") from error
