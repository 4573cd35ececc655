"""How many clients may be connected at once, whether they talk or not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from parley_gateway.calls import CallSettings, check_share
from parley_gateway.security.principal import Principal
from parley_gateway.shares import Shares


class ConnectionSlots:
    """Counts connections, those that have no call yet among them, up to the limits of calls.

    Args:
        settings: Limits of the process and of a key.
        what: Is counted, for the error's text.
    """

    def __init__(self, settings: CallSettings, what: str) -> None:
        self._settings = settings
        self._what = what
        self._taken = Shares(settings.limit)

    @contextmanager
    def take(self, principal: Principal) -> Iterator[None]:
        """A place for one connection.

        Raises:
            TooManyCallsError: there are too many already.
        """
        check_share(self._taken, principal, self._settings, self._what)
        with self._taken.take(principal.owner):
            yield
