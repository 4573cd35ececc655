"""A gateway whose ``/metrics`` also has its asyncio tasks and gRPC channels.

It takes the server's address, listens on any free port, and prints it as ``parley gateway`` does.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from soak_counts import count_channels, live_channels, live_tasks

from parley_gateway.serving import Running, serve
from parley_gateway.settings import load_settings

TASKS, CHANNELS = "soak_tasks", "soak_channels"


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


async def _serve(server: str) -> None:
    loop = asyncio.get_running_loop()

    def announce(one: Running) -> None:
        one.gateway.metrics.registry.register(_Counts(loop))
        print(f"ready http={one.url}", flush=True)

    flags: dict[str, dict[str, object]] = {
        "listen": {"host": "127.0.0.1", "port": 0},
        "servers": {"addresses": (server,)},
    }
    await serve(load_settings(None, os.environ, flags), announce)


if __name__ == "__main__":
    count_channels()
    asyncio.run(_serve(sys.argv[1]))
