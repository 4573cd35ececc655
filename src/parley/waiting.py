"""Waits that end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from typing import TypeVar

from parley.errors import DeadlineExceededError, ParleyError

T = TypeVar("T")
_log = logging.getLogger(__name__)


async def within(work: Awaitable[T], limit_s: float, what: str) -> T:
    """The result of ``work``.

    Raises:
        DeadlineExceededError: ``what`` did not answer within ``limit_s`` seconds.
    """
    try:
        async with asyncio.timeout(limit_s):
            return await work
    except TimeoutError as error:
        raise DeadlineExceededError(f"{what} did not answer within {limit_s:g} s") from error


async def each_within(stream: AsyncGenerator[T, None], limit_s: float, what: str) -> AsyncGenerator[T, None]:
    """The items of ``stream``, which is closed in any case.

    Raises:
        DeadlineExceededError: ``what`` let its next item be waited for longer than ``limit_s`` seconds.
    """
    async with aclosing(stream):
        while True:
            try:
                item = await within(anext(stream), limit_s, what)
            except StopAsyncIteration:
                return
            yield item


async def try_within(work: Awaitable[object], limit_s: float, what: str) -> None:
    """Wait for clean-up that may fail: its failure is logged, because nobody can act on it."""
    try:
        await within(work, limit_s, what)
    except ParleyError as error:
        _log.warning("%s: %s", what, error.to_log())
