"""A real gateway on a free port; its servers and their agents are fakes."""

from __future__ import annotations

import asyncio
import json
import ssl
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import grpc
import httpx
from fake_agent import FakeAgent, polite
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedError

from parley.canaries.asking import CanaryResult
from parley.errors import ParleyError
from parley_gateway.apis.sessions.messages import SUBPROTOCOL
from parley_gateway.app import APIS, create_app
from parley_gateway.servers import Servers, ServerSettings, TritonServer
from parley_gateway.servers.discovery import Endpoint
from parley_gateway.servers.load import ServerReport
from parley_gateway.serving import running
from parley_gateway.settings import load_settings

DEADLINE_S = 5.0
NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""A client without TLS needs none, and to read them takes 20 ms."""
WELL = [CanaryResult("voice_agent", ok=True, duration_ms=1.0, detail="it answered")]


class FakeChannel:
    """A server's channel, which is not used."""

    def __init__(self, endpoint: Endpoint):
        self.address = endpoint.address

    def get_state(self) -> grpc.ChannelConnectivity:
        """Nothing is wrong with it."""
        return grpc.ChannelConnectivity.READY

    async def close(self) -> None:
        """Nothing is open."""


async def always_ready(*_: Any) -> None:
    """Every server is."""


async def no_metrics(_: Endpoint) -> ServerReport:
    return ServerReport()


def fake_servers(settings: ServerSettings, **functions: Any) -> Servers:
    """Servers that are ready and say nothing of themselves, unless ``functions`` do."""
    functions = {
        "open_channel": FakeChannel,
        "probe": always_ready,
        "ask_models": lambda *_: [],
        "read_metrics": no_metrics,
    } | functions
    return Servers(settings, **functions)


class FakePool:
    """Servers by address, each with its agent; `problems` says which are not ready."""

    def __init__(self, agents: dict[str, FakeAgent]):
        self.agents = agents
        self.problems: dict[str, ParleyError] = {}
        self.reports: dict[str, list[CanaryResult] | Exception] = {}
        self.metrics: dict[str, ServerReport] = {}
        self.asked: list[tuple[str, float]] = []

    async def probe(self, channel: FakeChannel, timeout_s: float) -> None:
        problem = self.problems.get(channel.address)
        if problem is not None:
            raise problem

    async def read_metrics(self, endpoint: Endpoint) -> ServerReport:
        return self.metrics.get(endpoint.address, ServerReport())

    def ask_models(self, address: str, deadline_s: float) -> list[CanaryResult]:
        self.asked.append((address, deadline_s))
        report = self.reports.get(address, WELL)
        if isinstance(report, Exception):
            raise report
        return report

    def transport(self, server: TritonServer) -> FakeAgent:
        return self.agents[server.address]


class GatewayUnderTest:
    """One gateway; with several behaviours, one server for each."""

    def __init__(self, behaviours: tuple[Any, ...], parts: dict[str, dict[str, Any]], keeper=None, apis=APIS):
        agents = [
            FakeAgent(*one) if isinstance(one, tuple) else FakeAgent(one) for one in behaviours or (polite,)
        ]
        self.agents = agents
        self.pool = FakePool({f"server-{number}:1": agent for number, agent in enumerate(agents)})
        addresses = {
            "addresses": list(self.pool.agents),
            "metrics_url": "http://{host}:8002/metrics",
            "retry_s": 0.01,
            "retry_max_s": 0.02,
        }
        parts["servers"] = addresses | parts.get("servers", {})
        parts["listen"] = {"port": 0} | parts.get("listen", {})
        self.settings = load_settings(flags=parts)
        self.app = create_app(
            self.settings,
            servers=fake_servers(
                self.settings.servers,
                probe=self.pool.probe,
                ask_models=self.pool.ask_models,
                read_metrics=self.pool.read_metrics,
            ),
            transport=self.pool.transport,
            kept=keeper,
            apis=apis,
        )
        self.gateway = self.app.state.gateway
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        one = await self._stack.enter_async_context(running(self.settings, app=self.app))
        self.url, self.health_url, self.metrics_url = one.url, one.health_url, one.metrics_url
        client = httpx.AsyncClient(timeout=30, base_url=self.url, verify=NO_CERTIFICATES)
        self.http = await self._stack.enter_async_context(client)

    async def stop(self) -> None:
        await self._stack.aclose()
        for agent in self.agents:
            await agent.close()

    @property
    def ws_url(self) -> str:
        return "ws" + self.url.removeprefix("http")

    async def create(self, **options: Any) -> str:
        answer = await self.http.post("/v1/sessions", json=options)
        assert answer.status_code == 201, answer.text
        return answer.json()["session_id"]

    async def status(self, session_id: str) -> dict[str, Any]:
        answer = await self.http.get(f"/v1/sessions/{session_id}/status")
        assert answer.status_code == 200, answer.text
        return answer.json()

    @asynccontextmanager
    async def stream(self, session_id: str | None = None, **arguments: Any):
        """The stream of a session, new if none is named."""
        session_id = session_id or await self.create()
        url = f"{self.ws_url}/v1/sessions/{session_id}/stream"
        arguments = {"subprotocols": [SUBPROTOCOL], "compression": None} | arguments
        async with connect(url, **arguments) as socket:
            socket.session_id = session_id
            yield socket

    @asynccontextmanager
    async def connection(self, limit: int = 65_536):
        """A connection whose client does nothing by itself; it reads ``limit`` bytes ahead."""
        host, port = self.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=limit)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        lines = (await self.http.get("/metrics")).text.splitlines()
        values = [
            float(line.rpartition(" ")[2]) for line in lines if line.split("{")[0].split(" ")[0] == name
        ]
        assert values, name
        return sum(values)

    def failures(self) -> list[dict[str, float]]:
        """What was counted of refusals and of lost calls, by code."""
        return [
            {
                sample.labels["code"]: sample.value
                for family in counter.collect()
                for sample in family.samples
                if sample.name.endswith("_total") and sample.value
            }
            for counter in (self.gateway.metrics.refused, self.gateway.metrics.lost)
        ]


async def receive(socket, kind: str) -> dict[str, Any]:
    """The next message of a kind; others are skipped."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            message = await socket.recv()
            if isinstance(message, str) and (content := json.loads(message))["type"] == kind:
                return content


async def closed(socket) -> tuple[int, str]:
    """How the gateway closes a WebSocket; what comes before is read.

    It may take 5 s of its own until it closes one whose session was taken over.
    """
    async with asyncio.timeout(3 * DEADLINE_S):
        with suppress(ConnectionClosedError):
            async for _ in socket:
                pass
        await socket.wait_closed()
    return socket.close_code, socket.close_reason


async def until(condition):
    """Wait until something is so."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - no event reports the change
            await asyncio.sleep(0)


async def frame_of(agent, matches, number=0):
    """Wait until the agent's stream has a frame that matches."""

    def find():
        seen = agent.streams[number].seen if len(agent.streams) > number else ()
        return next((frame for frame in seen if matches(frame)), None)

    await until(find)
    return find()
