"""Files that are read again when they change, without a restart."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from parley_gateway.errors import GatewaySettingsError

_LOG = logging.getLogger(__name__)
_LOOK_EVERY_S = 1.0

T = TypeVar("T")
R = TypeVar("R")


class WatchedFile(Generic[T]):
    """What a file, or several that belong together, hold.

    They are looked at once a second while they are asked for, and read when time, size or place of one has
    changed. Files that cannot be read any more, or not as they are now, change nothing: the log says so, and
    what was read before still counts.

    Args:
        path: The file, or all of them.
        parse: Makes of the bytes of each what they hold; raises :class:`GatewaySettingsError`.
        clock: Seconds; only for how often the files are looked at.

    Raises:
        GatewaySettingsError: a file cannot be used at the start.
    """

    def __init__(
        self,
        path: Path | Sequence[Path],
        parse: Callable[..., T],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._paths = [path] if isinstance(path, Path) else path
        self._name = ", ".join(map(str, self._paths))
        self._parse = parse
        self._clock = clock
        self.problem = ""
        """Why the files could not be used the last time; empty: they could."""
        self._stamp = self._look()
        self._looked_at = clock()
        self.value = self._read()
        """What they held when they were looked at last."""

    def get(self) -> T:
        """What it holds now."""
        if self._clock() - self._looked_at >= _LOOK_EVERY_S:
            self.check()
        return self.value

    def check(self) -> bool:
        """Look at them now, and read them if one has changed; returns whether they were read."""
        self._looked_at = self._clock()
        return self._refresh(force=False)

    def reload(self) -> None:
        """Read it now, changed or not."""
        self._refresh(force=True)

    def _refresh(self, *, force: bool) -> bool:
        try:
            seen, self._stamp = self._stamp, None
            self._stamp = self._look()
            if self._stamp == seen and not force:
                return False
            self.value = self._read()
        except GatewaySettingsError as error:
            # Also files that cannot be used count as seen: once in the log is enough.
            if str(error) != self.problem or force:
                _LOG.error("keeping what was read before: %s", error)
            self.problem = str(error)
            return False
        self.problem = ""
        _LOG.info("%s: read again", self._name)
        return True

    def _look(self) -> list[tuple[int, int, int]] | None:
        found = [_of(path, Path.stat) for path in self._paths]
        return [(one.st_mtime_ns, one.st_size, one.st_ino) for one in found]

    def _read(self) -> T:
        contents = [_of(path, Path.read_bytes) for path in self._paths]
        try:
            return self._parse(*contents)
        except GatewaySettingsError as error:
            raise GatewaySettingsError(f"{self._name}: {error}") from error


def _of(path: Path, ask: Callable[[Path], R]) -> R:
    try:
        return ask(path)
    except OSError as error:
        raise GatewaySettingsError(f"{path}: cannot be read: {error}") from error
