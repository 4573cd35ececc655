"""One installation on one machine: nginx, gateways, servers, Redis and Prometheus, each in a node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Annotated

from harness.caller import CallReport
from harness.network import Network, Node
from harness.servers import Gateway, Redis, Server, ServersFile, shared_settings

from cluster.balancer import Balancer
from cluster.monitoring import Prometheus
from cluster.session_logs import read_history
from parley.checkpoint import HistoryState
from parley_client import ToolTable, connect
from parley_client.call import Call
from parley_client.cli.demo_tools import get_time, set_timer
from parley_client.tools import tool

DRAIN_S = 90
"""How long a gateway lets its calls go on."""
_LOWEST_DEGREES = 4


class Site:
    """All nodes of an installation; its programs end with the network.

    Args:
        network: Gets the nodes.
        folder: For logs and configurations.
        profile: Of the servers.
        workers: Servers.
        gateways: Gateways.
        calls: At once, for the limits of the gateways.
    """

    def __init__(
        self, network: Network, folder: Path, *, profile: str, workers: int, gateways: int, calls: int
    ) -> None:
        self.network = network
        self.callers_node = network.add("callers")
        self.other_callers_node = network.add("callers-2")
        self.servers = ServersFile(folder / "servers.txt")
        self.workers = [
            Server(network.add(f"worker-{number + 1}"), profile, folder) for number in range(workers)
        ]
        self.redis = Redis(network.add("redis"), folder)
        self.balancer = Balancer(network.add("nginx"), folder)
        settings = {
            **shared_settings(self.redis.url, folder),
            "PARLEY_GATEWAY_LISTEN_DRAIN_S": str(DRAIN_S),
            "PARLEY_GATEWAY_SECURITY_TRUSTED_PROXIES": self.balancer.node.address,
            # All calls come from one address, which gets at most three quarters of the places.
            "PARLEY_GATEWAY_CALLS_LIMIT": str(max(32, 4 * calls)),
        }
        self.gateways = [
            Gateway(network.add(f"gateway-{number + 1}"), self.servers, folder, settings)
            for number in range(gateways)
        ]
        self.prometheus = Prometheus(
            network.add("prometheus"),
            folder,
            [worker.metrics for worker in self.workers],
            [gateway.metrics for gateway in self.gateways],
        )

    def node_of(self, part: Server | Gateway) -> Node:
        """Where a server or a gateway runs."""
        return self.network[part.host.name]

    @property
    def url(self) -> str:
        """Where callers call."""
        return f"http://{self.balancer.address}"

    @property
    def gateway_addresses(self) -> dict[str, str]:
        """By name."""
        return {gateway.name: gateway.address for gateway in self.gateways}

    async def start(self, say: Callable[[str], None]) -> None:
        """Start everything; one server after the other, because they share the processors.

        Args:
            say: Called with what is being started.

        Raises:
            ParleyError: something has not become ready.
        """
        self.list_servers(self.workers)
        for worker in self.workers:
            say(f"starting {worker.host.name} …")
            await worker.start()
        say("starting Redis, gateways, nginx and Prometheus …")
        await self.redis.start()
        for gateway in self.gateways:
            await gateway.start()
        await self.balancer.start(self.gateway_addresses)
        await self.prometheus.start()

    def list_servers(self, workers: Sequence[Server]) -> None:
        """Write the gateways' file of servers."""
        self.servers.write({worker.address: f"http://{worker.metrics}/metrics" for worker in workers})

    def connect(self, caller: int) -> AbstractAsyncContextManager[Call]:
        """A call of the caller with this number, through nginx and a gateway."""
        return connect(self.url, tools=caller_tools(caller), greeting="")

    async def read_history(self, _: Call, report: CallReport) -> HistoryState | None:
        """What the agent remembers of an open call; None: its gateway does not say."""
        return await read_history(self.gateways, report.session_id)


def degrees_of(caller: int) -> int:
    """The temperature that a caller's tool tells: of each another one."""
    return _LOWEST_DEGREES + caller


def caller_tools(caller: int) -> ToolTable:
    """The demonstration's tools, with weather that no other caller has."""

    @tool
    def get_weather(
        city: Annotated[str, "The name of the city."],  # noqa: ARG001 - for the model
        day: Annotated[str | None, "The day, if it is not now."] = None,  # noqa: ARG001 - for the model
    ) -> dict[str, int | str]:
        """Get the weather in a city."""
        return {"temperature": degrees_of(caller), "sky": "sunny"}

    return ToolTable([get_weather, get_time, set_timer])
