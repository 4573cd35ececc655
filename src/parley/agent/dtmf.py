"""Keys that the user presses, until they make a turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from parley.errors import InvalidMessageError

KEYS = frozenset("0123456789*#ABCD")
_MAX_KEYS = 64


class DtmfBuffer:
    """Collects keys: ``#`` ends them, and so does a pause.

    Args:
        pause_s: after the last key.
        entered: takes the keys, without the ``#``.
    """

    def __init__(self, pause_s: float, entered: Callable[[str], None]) -> None:
        self._pause_s = pause_s
        self._entered = entered
        self._keys = ""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def pending(self) -> bool:
        """Whether keys were pressed that are no turn yet."""
        return bool(self._keys)

    def press(self, keys: str) -> None:
        """Take further keys.

        Raises:
            InvalidMessageError: there are no such keys, or too many of them.
        """
        if not keys or not KEYS.issuperset(keys):
            raise InvalidMessageError(f"dtmf.digits is {keys[:_MAX_KEYS]!r}; it must be of 0123456789*#ABCD")
        if len(self._keys) + len(keys) > _MAX_KEYS:
            raise InvalidMessageError(f"more than {_MAX_KEYS} keys without a pause")
        for key in keys:
            if key == "#":
                self._enter()
            else:
                self._keys += key
        self.close()
        if self._keys:
            self._timer = asyncio.get_running_loop().call_later(self._pause_s, self._enter)

    def close(self) -> None:
        """Wait no longer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _enter(self) -> None:
        self.close()
        keys, self._keys = self._keys, ""
        if keys:
            self._entered(keys)
