"""How many clients may be connected at once, whether they talk or not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from parley_gateway.calls import CallSettings
from parley_gateway.errors import TooManyCallsError
from parley_gateway.security.principal import Principal


class Places:
    """Counts connections, those that have no call yet among them, up to the limits of calls.

    Args:
        settings: Limits of the process and of a key.
        what: Is counted, for the error's text.
    """

    def __init__(self, settings: CallSettings, what: str) -> None:
        self._settings = settings
        self._what = what
        self._taken: Counter[str] = Counter()

    @contextmanager
    def take(self, principal: Principal) -> Iterator[None]:
        """A place for one connection.

        Raises:
            TooManyCallsError: there are too many already.
        """
        settings, owner = self._settings, principal.id
        if self._taken.total() >= settings.limit:
            raise self._full(settings.limit, "which is all this gateway takes")
        if self._taken[owner] >= settings.per_key and not principal.is_many:
            raise self._full(settings.per_key, "which is all that a key may have")
        self._taken[owner] += 1
        try:
            yield
        finally:
            self._taken[owner] -= 1
            if not self._taken[owner]:
                del self._taken[owner]

    def _full(self, limit: int, why: str) -> TooManyCallsError:
        return TooManyCallsError(
            f"{limit} {self._what} are open, {why}", retry_after_s=self._settings.retry_after_s
        )
