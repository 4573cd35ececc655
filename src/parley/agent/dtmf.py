"""Keys (DTMF) that the user presses, collected into one turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from parley.errors import InvalidMessageError

KEYS = frozenset("0123456789*#ABCD")
MAX_KEYS = 64


class DtmfBuffer:
    """Collects keys until ``#`` or a pause of ``pause_s``, and passes them on without ``#``."""

    def __init__(self, pause_s: float, on_entered: Callable[[str], None]) -> None:
        self._pause_s = pause_s
        self._on_entered = on_entered
        self.keys = ""
        """Those that were pressed since the last turn."""
        self._timer: asyncio.TimerHandle | None = None

    def press(self, keys: str) -> None:
        """Add keys.

        Raises:
            InvalidMessageError: they are not DTMF keys, or too many.
        """
        if not keys or not KEYS.issuperset(keys):
            raise InvalidMessageError(f"dtmf.digits is {keys[:MAX_KEYS]!r}; it must be of 0123456789*#ABCD")
        if len(self.keys) + len(keys) > MAX_KEYS:
            raise InvalidMessageError(f"more than {MAX_KEYS} keys without a pause")
        for key in keys:
            if key == "#":
                self._enter()
            else:
                self.keys += key
        self.close()
        if self.keys:
            self._timer = asyncio.get_running_loop().call_later(self._pause_s, self._enter)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _enter(self) -> None:
        self.close()
        keys, self.keys = self.keys, ""
        if keys:
            self._on_entered(keys)
