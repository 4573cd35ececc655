"""Which requests of a decoupled model may run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from parley.errors import InvalidMessageError, OverloadedError
from parley.serving.early_aborts import EarlyAborts


class Admission:
    """Gives places to requests on one event loop, and knows the aborts that overtook theirs.

    Args:
        max_requests: requests running or waiting at once; more are refused.
        clock: seconds, never going back.
    """

    def __init__(self, max_requests: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_requests = max_requests
        self._active: set[str] = set()
        self._early_aborts = EarlyAborts(clock=clock)

    def __len__(self) -> int:
        """Requests that have a place."""
        return len(self._active)

    def __contains__(self, request_id: str) -> bool:
        """Whether a request has a place."""
        return request_id in self._active

    def abort_early(self, request_id: str) -> None:
        """Remember an abort whose request has not come yet."""
        self._early_aborts.add(request_id)

    def was_aborted(self, request_id: str) -> bool:
        """Whether a request was aborted before it came; forgets the abort.

        Raises:
            InvalidMessageError: the id is empty.
        """
        if not request_id:
            raise InvalidMessageError("request_id is empty")
        return self._early_aborts.take(request_id)

    @contextmanager
    def place(self, request_id: str) -> Iterator[None]:
        """Hold a place.

        Raises:
            InvalidMessageError: the id is in use.
            OverloadedError: there is none left.
        """
        if request_id in self._active:
            raise InvalidMessageError(f"request id {request_id!r} is in use")
        if len(self._active) >= self._max_requests:
            raise OverloadedError(f"{len(self._active)} requests are running or waiting already")
        self._active.add(request_id)
        try:
            yield
        finally:
            self._active.discard(request_id)
