"""Aborts that arrive before the request that they are meant for."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable


class EarlyAborts:
    """Remembers the ids of aborts for a while: requests may be overtaken on their way.

    An abort for a request that has ended is remembered too; ids must therefore be unique.

    Args:
        size: ids remembered at most; the oldest is forgotten first.
        seconds: how long an abort waits for its request.
        clock: seconds, never going back.
    """

    def __init__(
        self, *, size: int = 1024, seconds: float = 30.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._size = size
        self._seconds = seconds
        self._clock = clock
        self._times: OrderedDict[str, float] = OrderedDict()

    def add(self, request_id: str) -> None:
        """Remember an abort."""
        self._times[request_id] = self._clock()
        self._times.move_to_end(request_id)
        if len(self._times) > self._size:
            self._times.popitem(last=False)

    def take(self, request_id: str) -> bool:
        """Whether this request was aborted before it came; forgets the abort."""
        at = self._times.pop(request_id, None)
        return at is not None and self._clock() - at < self._seconds
