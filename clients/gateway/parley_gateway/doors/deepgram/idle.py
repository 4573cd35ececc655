"""Clients that say nothing any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from parley.errors import SessionIdleError


async def each_before(
    source: AsyncIterator[str | bytes], limit_s: float, what: str
) -> AsyncIterator[str | bytes]:
    """The messages of ``source``.

    Raises:
        SessionIdleError: none came for ``limit_s`` seconds.
    """
    while True:
        try:
            async with asyncio.timeout(limit_s):
                message = await anext(source)
        except StopAsyncIteration:
            return
        except TimeoutError as error:
            raise SessionIdleError(f"no {what} came for {limit_s:g} s") from error
        yield message
