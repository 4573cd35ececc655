"""Work that goes on beside reading a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any


async def read_beside(reading: Awaitable[None], *helpers: Coroutine[Any, Any, None]) -> None:
    """Await ``reading``, and run ``helpers`` meanwhile; one of them that fails ends it at once.

    Args:
        reading: Ends when there is nothing more to do.
        *helpers: Whatever has to go on until then; to return earlier is no failure.

    Raises:
        Exception: what ``reading`` or the first helper to fail has raised.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(helper) for helper in helpers]
            await reading
            for task in tasks:
                task.cancel()
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from failures
