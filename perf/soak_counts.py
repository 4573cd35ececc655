"""Asyncio tasks and gRPC channels of this process, for the soak."""

from __future__ import annotations

import asyncio
import collections
import functools
import weakref
from typing import Any

# Not `grpc.aio.Channel`, which is the abstract class: this one is what every function of gRPC makes.
from grpc.aio._channel import Channel

_channels: weakref.WeakSet[Channel] = weakref.WeakSet()


def count_channels() -> None:
    """Count the channels that are made from now on, until they are freed."""
    original = Channel.__init__

    @functools.wraps(original)
    def counted(self: Channel, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        _channels.add(self)

    Channel.__init__ = counted


def live_channels() -> int:
    """Channel objects that were made since :func:`count_channels`, and are not freed."""
    return len(_channels)


def live_tasks(loop: asyncio.AbstractEventLoop) -> dict[str, int]:
    """Unfinished tasks of a loop, by the name of their coroutine."""
    return dict(
        collections.Counter(
            getattr(task.get_coro(), "__qualname__", "unknown") for task in asyncio.all_tasks(loop)
        )
    )
