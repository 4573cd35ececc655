"""Which single-use tokens were used."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from parley_gateway.errors import RateLimitedError


class UsedTokens:
    """Remembers them until they expire, up to a bound.

    Args:
        bound: How many at once.
        clock: Seconds since 1970.
    """

    def __init__(self, bound: int, clock: Callable[[], float] = time.time) -> None:
        self._bound = bound
        self._clock = clock
        self._expiry: OrderedDict[str, int] = OrderedDict()

    def use(self, token_id: str, expires_at: int) -> bool:
        """Use a token up; False: it was used before.

        Raises:
            RateLimitedError: too many are remembered. To forget one early would let it be used again.
        """
        if token_id in self._expiry:
            return False
        if len(self._expiry) >= self._bound:
            self._forget()
        if len(self._expiry) >= self._bound:
            wait = max(1.0, min(self._expiry.values()) - self._clock())
            raise RateLimitedError("too many single-use tokens at once", retry_after_s=wait)
        self._expiry[token_id] = expires_at
        return True

    def _forget(self) -> None:
        now = self._clock()
        # They last for different times: what has not expired may stand before what has.
        for token_id in [name for name, expiry in self._expiry.items() if expiry < now]:
            del self._expiry[token_id]
