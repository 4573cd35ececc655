"""A gateway whose ``/metrics`` also has its asyncio tasks and gRPC channels.

Its settings are those of the environment; it says when it is ready as ``parley gateway`` does.
"""

from __future__ import annotations

import asyncio
import collections
import functools
import os
import weakref
from collections.abc import Iterator
from typing import Any

# Not `grpc.aio.Channel`, which is the abstract class: this one is what every function of gRPC makes.
from grpc.aio._channel import Channel
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from parley_gateway.serving import Running, serve
from parley_gateway.settings import load_settings

TASKS, CHANNELS = "soak_tasks", "soak_channels"

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


class _Counts(Collector):
    """Reads the counts when the page is asked for."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Tasks by coroutine, and channels."""
        tasks = GaugeMetricFamily(TASKS, "Unfinished tasks", labels=["coroutine"])
        for name, count in live_tasks(self._loop).items():
            tasks.add_metric([name], count)
        yield tasks
        yield GaugeMetricFamily(CHANNELS, "Channel objects that are not freed", value=live_channels())


async def _serve() -> None:
    loop = asyncio.get_running_loop()

    def announce(one: Running) -> None:
        one.gateway.metrics.registry.register(_Counts(loop))
        print(f"ready http={one.url}", flush=True)

    await serve(load_settings(None, os.environ, {}), announce)


if __name__ == "__main__":
    count_channels()
    asyncio.run(_serve())
