"""Which requests of a decoupled model may run."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from parley.errors import InvalidMessageError, OverloadedError


class Admission:
    """Bounds the requests on one event loop, and remembers their aborts, also those that overtook them.

    Args:
        max_requests: requests running or waiting at once; more are refused.
    """

    def __init__(self, max_requests: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_requests = max_requests
        self._active: dict[str, bool] = {}  # whether it was aborted
        self._early_aborts = EarlyAborts(clock=clock)

    def __len__(self) -> int:
        """Requests that have a place."""
        return len(self._active)

    def abort(self, request_id: str) -> bool:
        """Remember an abort; False: its request has no place, and may be on its way."""
        if request_id not in self._active:
            self._early_aborts.add(request_id)
            return False
        self._active[request_id] = True
        return True

    def is_aborted(self, request_id: str) -> bool:
        """Whether a request was aborted while it has its place."""
        return self._active.get(request_id, False)

    def was_aborted(self, request_id: str) -> bool:
        """Whether a request was aborted before it came; forgets the abort.

        Raises:
            InvalidMessageError: the id is empty.
        """
        if not request_id:
            raise InvalidMessageError("request_id is empty")
        return self._early_aborts.take(request_id)

    @contextmanager
    def place(self, request_id: str, *, kept_free: int = 0) -> Iterator[None]:
        """Hold a place; ``kept_free`` others must stay free.

        Raises:
            InvalidMessageError: the id is in use.
            OverloadedError: there is none left.
        """
        if request_id in self._active:
            raise InvalidMessageError(f"request id {request_id!r} is in use")
        if len(self._active) + kept_free >= self._max_requests:
            raise OverloadedError(f"{len(self._active)} requests are running or waiting already")
        self._active[request_id] = False
        try:
            yield
        finally:
            del self._active[request_id]


class EarlyAborts:
    """Remembers the ids of aborts for a while: requests may be overtaken on their way.

    An abort for a request that has ended is remembered too; ids must therefore be unique.

    Args:
        size: ids remembered at most; the oldest is forgotten first.
        seconds: how long an abort waits for its request.
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
