"""What the faults happen to: two servers, two gateways, a Redis and a collector of traces, each in a node.

``gateway-1`` has all that a gateway can depend on: TLS, Redis, a collector, and both servers. ``gateway-2``
has ``b`` alone. So of every fault there are calls that it must not touch.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import httpx
from harness.network import Host, Network
from harness.servers import UNLIMITED_RATES, Gateway, Program, Redis, Server, write_servers

from chaos.words import Part
from parley.errors import DeadlineExceededError, ParleyError
from parley.launcher.options import ROOT, TINY_PROFILE
from parley.protocol import TurnOptions
from parley_client import NO_RETRY, Backoff, connect
from parley_client.call import Call
from parley_client.gateway_transport import GatewayTransport

A, B, GATEWAY_1, GATEWAY_2 = "a", "b", "gateway-1", "gateway-2"
PARTS: Mapping[str, frozenset[str]] = {
    A: frozenset({A}),
    B: frozenset({B}),
    # Its calls may be on either server.
    GATEWAY_1: frozenset({GATEWAY_1, A, B}),
    GATEWAY_2: frozenset({GATEWAY_2, B}),
}
"""Where callers call, and what such a call depends on."""
ANY = "any"
"""Where new callers may call besides: at a list of both servers."""
_TRANSCRIPT_S = 20.0
"""The longest wait of a gateway for a transcript; its own default is that of long recordings."""
_COLLECTOR = Path(__file__).with_name("collector.py")
_COLLECTOR_PORT = 4318
_READY_S, _HEALTHY_S = 30.0, 240.0
_LOOK_S, _ASK_S = 0.25, 5.0
_RETRY = Backoff(attempts=8, max_s=2.0)


class Deployment:
    """All of it; ``folder`` gets logs, certificates and traces."""

    def __init__(self, network: Network, folder: Path) -> None:
        self.node_a = network.add(A)
        self.a = Place(self.node_a, TINY_PROFILE, folder)
        self.b = Place(network.add(B), TINY_PROFILE, folder)
        self.redis = Redis(network.add("redis"), folder)
        node = network.add(GATEWAY_1)
        # As an agent of the node would be, and because it listens on loopback alone.
        self._collector = Program(node, "collector", folder)
        self.traces = folder / "traces.txt"
        self.certificate, self.key = folder / "certificate.pem", folder / "key.pem"
        self._authority, self._authority_key = folder / "authority.pem", folder / "authority.key"
        _openssl(
            *("-subj", "/CN=chaos", "-out", str(self._authority), "-keyout", str(self._authority_key)),
            *("-addext", "keyUsage=critical,keyCertSign"),
        )
        self.renew_certificate(node.address)
        both = {self.a.address: self.a.metrics, self.b.address: self.b.metrics}
        servers = write_servers(folder / "servers", both)
        common = {**UNLIMITED_RATES, "PARLEY_GATEWAY_STAGES_TRANSCRIBE_S": f"{_TRANSCRIPT_S:g}"}
        self.gateway_1 = Gateway(
            node,
            servers,
            folder,
            {
                **common,
                "PARLEY_GATEWAY_LISTEN_CERTIFICATE": str(self.certificate),
                "PARLEY_GATEWAY_LISTEN_KEY": str(self.key),
                "PARLEY_GATEWAY_RATES_STORE": self.redis.url,
                "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{_COLLECTOR_PORT}",
                "OTEL_BSP_SCHEDULE_DELAY": "1000",
            },
        )
        only_b = write_servers(folder / "servers-b", {self.b.address: self.b.metrics})
        self.gateway_2 = Gateway(network.add(GATEWAY_2), only_b, folder, common)

    @property
    def urls(self) -> Mapping[str, str]:
        """Of the gateways."""
        return {GATEWAY_1: self.gateway_1.url, GATEWAY_2: self.gateway_2.url}

    def trust(self, where: str) -> ssl.SSLContext:
        """Which certificates the clients of a gateway believe; without TLS none."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if where == GATEWAY_1:
            context.load_verify_locations(self._authority)
        return context

    def renew_certificate(self, address: str = "") -> None:
        """Replace the certificate of ``gateway-1`` and its key, one after the other.

        Args:
            address: Of the gateway; empty: of the one that runs.
        """
        address = address or self.gateway_1.host.address
        new = [path.with_suffix(".new") for path in (self.certificate, self.key)]
        _openssl(
            *("-subj", f"/CN={GATEWAY_1}", "-addext", f"subjectAltName=IP:{address}"),
            *("-CA", str(self._authority), "-CAkey", str(self._authority_key)),
            *("-out", str(new[0]), "-keyout", str(new[1])),
        )
        for path, other in zip((self.certificate, self.key), new, strict=True):
            other.replace(path)

    async def shown_certificate(self) -> str:
        """The certificate that ``gateway-1`` shows to a new connection, as PEM.

        Raises:
            OSError: it does not answer.
        """
        host, _, port = self.gateway_1.address.partition(":")
        return await asyncio.to_thread(ssl.get_server_certificate, (host, int(port)), timeout=_ASK_S)

    def open(self, where: str, part: Part, *, once: bool = False) -> AbstractAsyncContextManager[Call]:
        """Open a call.

        Args:
            where: A key of :data:`PARTS`, or :data:`ANY`.
            part: Of the caller.
            once: Without a second attempt, and on this server alone.
        """
        options: dict[str, Any] = {
            "tools": part.tools(),
            "turn": TurnOptions(eagerness="normal"),
            "greeting": "",
            "retry": NO_RETRY if once else _RETRY,
        }
        if where in self.urls:
            url, tls = self.urls[where], self.trust(where) if where == GATEWAY_1 else None
            return connect("", transport=lambda: GatewayTransport(url, tls=tls), **options)
        order = {A: [self.a], B: [self.b]} if once else {A: [self.a, self.b], B: [self.b, self.a]}
        order[ANY] = [self.a, self.b]
        return connect([place.address for place in order[where]], resume=not once, **options)

    async def start(self) -> None:
        """Start everything, one after the other, because they share the processors.

        Raises:
            ParleyError: something does not start.
        """
        await self.redis.start()
        await self.start_collector()
        for place in (self.a, self.b):
            await place.start()
        for gateway in (self.gateway_1, self.gateway_2):
            await gateway.start()
        await self.until_healthy()

    async def start_collector(self) -> None:
        """Start what takes the traces of ``gateway-1``."""
        command = [sys.executable, _COLLECTOR, str(_COLLECTOR_PORT), str(self.traces)]
        await self._collector.launch(
            command,
            lambda: self._collector.find_line("http://"),
            ready_s=_READY_S,
        )

    async def stop_collector(self) -> None:
        """End it."""
        await self._collector.stop(_READY_S)

    def count_traces(self) -> int:
        """Bytes that it has written: a line for each export."""
        return self.traces.stat().st_size if self.traces.exists() else 0

    async def until_healthy(self) -> None:
        """Start what has ended for good, as a supervisor of the deployment would, and wait until all serves.

        Raises:
            ParleyError: it does not.
        """
        for place in (self.a, self.b):
            if not place.pid:
                await place.start()
        end = time.monotonic() + _HEALTHY_S
        while problem := await self._find_problem():
            if time.monotonic() > end:
                raise DeadlineExceededError(f"after {_HEALTHY_S:g} s: {problem}")
            await asyncio.sleep(_LOOK_S)

    async def _find_problem(self) -> str:
        for name, place in ((A, self.a), (B, self.b)):
            record = place.record()
            if not record:
                return f"{name}: there is no record of its supervisor"
            parts = {"the server": record["server"], **record["models"]}
            if waiting := [one for one, entry in parts.items() if entry["state"] != "serving"]:
                return f"{name}: {', '.join(waiting)} does not serve"
        for name in self.urls:
            try:
                answer = await self._get(name, "/readyz")
            except ParleyError as error:
                return str(error)
            if not answer.is_success:
                return f"{name}: {answer.text}"
        return ""

    async def _get(self, where: str, path: str) -> httpx.Response:
        try:
            async with httpx.AsyncClient(verify=self.trust(where), timeout=_ASK_S, trust_env=False) as client:
                return await client.get(f"{self.urls[where]}{path}")
        except httpx.HTTPError as error:
            raise ParleyError(f"{where}: {error!r}") from error


def _openssl(*arguments: str) -> None:
    """Make a key and a certificate for it."""
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2".split()
    subprocess.run([*command, *arguments], check=True, capture_output=True)


DISK_MIB, SHARED_MIB = 192, 256
_DISK = Path("/mnt")
_TEMPORARY = _DISK / "temporary"
_SHARED = Path("/dev/shm")  # noqa: S108 - the kernel's own name for it
_BALLAST = "ballast"
_SMALLEST = 4096
_READY_S = 400.0
"""vLLM inspects its models where it has no cache, and both servers share the processors with the callers."""

# $1 is the folder of the state, $2 vLLM's cache of earlier starts, the rest is the command. `ip netns exec`
# gives the node a mount namespace of its own, in which these file systems end with its last process.
_MOUNT = f"""
set -e
mount -t tmpfs -o size={SHARED_MIB}m parley-shm {_SHARED}
mount -t tmpfs -o size={DISK_MIB}m parley-disk {_DISK}
mkdir {_DISK}/state {_TEMPORARY} {_DISK}/cache
if [ -d "$2" ]; then cp -r "$2" {_DISK}/cache/vllm; fi
mount --bind {_DISK}/state "$1"
shift 2
exec "$@" 2>>{_DISK}/launcher.log
"""


class Place(Server):
    """A server with a small disk and a small shared memory of its own.

    State, log, temporary files, the caches of vLLM, and what the launcher says are on that disk.
    """

    def __init__(self, host: Host, profile: str, folder: Path) -> None:
        self._mounted = ROOT / ".server" / f"perf-{host.name}"
        self._mounted.mkdir(parents=True, exist_ok=True)
        super().__init__(
            host,
            profile,
            folder,
            wrapper=["sh", "-c", _MOUNT, "sh", str(self._mounted), str(ROOT / ".cache" / "vllm")],
            environment={
                "TMPDIR": str(_TEMPORARY),
                "VLLM_CACHE_ROOT": f"{_DISK}/cache/vllm",
                "TORCHINDUCTOR_CACHE_DIR": f"{_DISK}/cache/torchinductor",
            },
            ready_s=_READY_S,
        )

    def state(self, name: str) -> Path:
        """A file of its state, as this process sees it.

        Raises:
            OSError: the server does not run.
        """
        return self._inside(self._mounted) / name

    def fill_disk(self) -> int:
        """Leave no byte on its disk; returns how many were free."""
        return _fill(self._inside(_DISK) / _BALLAST)

    def free_disk(self) -> None:
        """Take away what :meth:`fill_disk` has put there."""
        (self._inside(_DISK) / _BALLAST).unlink(missing_ok=True)

    def fill_shared_memory(self) -> int:
        """Leave no byte in its ``/dev/shm``; returns how many were free."""
        return _fill(self._inside(_SHARED) / _BALLAST)

    def free_shared_memory(self) -> None:
        """Take away what :meth:`fill_shared_memory` has put there."""
        (self._inside(_SHARED) / _BALLAST).unlink(missing_ok=True)

    def _inside(self, path: Path) -> Path:
        """A path of the server's mount namespace.

        Raises:
            OSError: the server does not run.
        """
        pid = self.pid
        if not pid:
            raise OSError(f"{self.host.name} does not run")
        return Path(f"/proc/{pid}/root{path}")


def _fill(path: Path) -> int:
    """Make a file that takes all space of its file system; returns its size."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        size, step = 0, 1 << 26
        while step >= _SMALLEST:
            try:
                os.posix_fallocate(descriptor, size, step)
                size += step
            except OSError:
                step //= 2
        return size
    finally:
        os.close(descriptor)
