"""Very many connections to a gateway with TLS.

Run as a program it opens them, and prints what became of them.
"""

from __future__ import annotations

import asyncio
import collections
import json
import os
import resource
import ssl
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cluster.network import Node

from parley.errors import ParleyError

_ROOT = Path(__file__).parents[1]
CONNECTS, WITHIN_S = 10_000, 60.0
_LATE = 1.1
"""The last ones may come so much later on a machine that is busy."""
_OPEN_S, _CLOSE_S, _LIMIT_S = 10.0, 20.0, 180.0
_BATCH_S = 0.05
_REQUEST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
_DESCRIPTORS = 16_384


@dataclass(frozen=True)
class Flood:
    """What became of them."""

    connected: int
    """TCP connections that were made."""
    took_s: float
    """Until the last one was begun."""
    ends: dict[str, int]
    """By how each ended: ``closed``, ``handshake``, ``200``, ``left open``, or the name of an exception."""

    def find_problems(self) -> list[str]:
        """Why it proves nothing."""
        problems = []
        if self.connected < CONNECTS or self.took_s > WITHIN_S * _LATE:
            problems.append(f"only {self.connected} connections within {self.took_s:.0f} s")
        if not self.ends.get("200"):
            problems.append("no request of the flood was answered")
        return problems


async def run_flood(node: Node, address: str) -> Flood:
    """Open the connections from a node.

    Args:
        node: From here.
        address: ``host:port`` of the gateway.

    Raises:
        ParleyError: it failed.
    """
    process = await asyncio.create_subprocess_exec(
        *("ip", "netns", "exec", node.namespace, sys.executable, "-P", "-m", "chaos.flood", address),
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_LIMIT_S):
            printed, said = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise ParleyError(f"the flood failed: {said.decode(errors='replace').strip()}")
    return Flood(**json.loads(printed))


class _Flooder:
    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._tls.check_hostname, self._tls.verify_mode = False, ssl.CERT_NONE
        self._kept: list[asyncio.StreamWriter] = []
        self._connected = 0
        self._ends: collections.Counter[str] = collections.Counter()

    async def run(self) -> Flood:
        began = time.monotonic()
        running: set[asyncio.Task[None]] = set()
        for number in range(CONNECTS):
            due = began + number * WITHIN_S / CONNECTS
            if due - time.monotonic() > _BATCH_S:
                await asyncio.sleep(due - time.monotonic())
            task = asyncio.create_task(self._connect(number % 4))
            running.add(task)
            task.add_done_callback(running.discard)
        took_s = time.monotonic() - began
        await asyncio.wait(running, timeout=_CLOSE_S)
        for writer in self._kept:
            writer.transport.abort()
        return Flood(self._connected, took_s, dict(self._ends))

    async def _connect(self, kind: int) -> None:
        try:
            async with asyncio.timeout(_OPEN_S):
                reader, writer = await asyncio.open_connection(self._host, self._port)
                self._connected += 1
                if kind == 3:
                    self._kept.append(writer)
                    self._ends["left open"] += 1
                    return
                try:
                    self._ends[await self._use(kind, reader, writer)] += 1
                finally:
                    writer.transport.abort()  # without the end of TLS, for which it would wait
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            self._ends[type(error).__name__] += 1

    async def _use(self, kind: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        if kind == 0:
            return "closed"
        await writer.start_tls(self._tls, server_hostname=self._host)
        if kind == 1:
            return "handshake"
        writer.write(_REQUEST)
        line = await reader.readline()
        return (line.split() or [b"", b"nothing"])[1].decode(errors="replace")


def main() -> None:
    """Open them, and print a :class:`Flood`."""
    host, _, port = sys.argv[1].rpartition(":")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(_DESCRIPTORS, hard), hard))
    print(json.dumps(asyncio.run(_Flooder(host, int(port)).run()).__dict__))


if __name__ == "__main__":
    main()
