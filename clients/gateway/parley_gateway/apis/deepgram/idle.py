"""Clients that say nothing any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from parley.errors import SessionIdleError


class IdleLimit:
    """How long a client may be silent.

    Args:
        limit_s: So long (seconds).
        what: Has to come, for the error's text.
    """

    def __init__(self, limit_s: float, what: str) -> None:
        self._limit_s = limit_s
        self._what = what
        self._timeout: asyncio.Timeout | None = None

    def touch(self) -> None:
        """Something happens beside the client's messages: the time begins anew."""
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(asyncio.get_running_loop().time() + self._limit_s)

    async def each(self, source: AsyncIterator[str | bytes]) -> AsyncIterator[str | bytes]:
        """The messages of ``source``.

        Raises:
            SessionIdleError: none came for so long.
        """
        while True:
            try:
                async with asyncio.timeout(self._limit_s) as self._timeout:
                    message = await anext(source)
            except StopAsyncIteration:
                return
            except TimeoutError as error:
                raise SessionIdleError(f"no {self._what} came for {self._limit_s:g} s") from error
            finally:
                self._timeout = None
            yield message
