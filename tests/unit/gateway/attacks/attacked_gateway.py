"""A gateway in a process of its own, whose health and memory are watched during attacks."""

import asyncio
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import psutil

HERE = Path(__file__).parent
START_S = 60
HEALTH_S = 5.0
"""Timeout of /healthz: Kubernetes gives up after three probes of 1 s."""
PROBER = "127.0.0.2"
"""Probes come from another address than attacks."""
MEMORY = 512 * 1024 * 1024
"""Bytes that the gateway may have resident."""
_WATCH_S = 0.05
_RATES = ("KEY_REQUESTS", "KEY_SESSIONS", "IP_REQUESTS", "IP_SESSIONS", "AUTH_FAILURES")
_DOCUMENTED_503 = {
    "overloaded", "shutting_down", "no_server_ready", "model_unavailable", "uploads_full", "decoders_busy",
}  # fmt: skip


class AttackedGateway:
    """Starts a gateway, probes its health all the time, and checks its responses.

    ``descriptors`` is RLIMIT_NOFILE of the process, soft and hard; ``settings`` are environment variables
    without their prefix. The log is written to ``folder``.
    """

    def __init__(self, folder, descriptors=None, **settings):
        self._log = folder / "gateway.log"
        self._limit = f"ulimit -n {descriptors}; " if descriptors else ""
        self._settings = {f"RATES_{name}": "" for name in _RATES} | settings
        self.statuses = Counter()
        self.faults = []
        self.slowest_s = 0.0
        self.most_memory = 0
        self.probes = 0

    async def __aenter__(self):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PARLEY_")}
        environment |= {f"PARLEY_GATEWAY_{name}": str(value) for name, value in self._settings.items()}
        environment["PYTHONPATH"] = os.pathsep.join(sys.path)
        command = f'{self._limit}exec "$0" "$1"'
        self._written = self._log.open("wb")
        self._process = await asyncio.create_subprocess_exec(
            "/bin/sh", "-c", command, sys.executable, str(HERE / "run_attacked_gateway.py"),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._written, env=environment,
        )  # fmt: skip
        try:
            async with asyncio.timeout(START_S):
                self.url = (await self._process.stdout.readline()).decode().strip()
            assert self.url, self.log()
        except BaseException:
            await self._stop()
            raise
        address = urlsplit(self.url)
        self.host, self.port = address.hostname, address.port
        self._is_over = threading.Event()
        # Not in this loop, which the attacks hold up.
        self._watching = threading.Thread(target=self._watch, name="watch")
        self._watching.start()
        return self

    async def __aexit__(self, *_):
        self._is_over.set()
        await asyncio.to_thread(self._watching.join)
        self.is_alive = self._process.returncode is None
        await self._stop()

    async def _stop(self):
        with contextlib.suppress(ProcessLookupError, TimeoutError):
            self._process.stdin.close()
            async with asyncio.timeout(START_S):
                await self._process.wait()
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        self._written.close()

    def log(self):
        """The log so far."""
        return self._log.read_text(errors="replace")

    # --- watching -----------------------------------------------------------------------------

    def _watch(self):
        process = psutil.Process(self._process.pid)
        while not self._is_over.wait(_WATCH_S):
            with contextlib.suppress(psutil.Error):
                self.most_memory = max(self.most_memory, process.memory_info().rss)
            self._probe()

    def _probe(self):
        began = time.monotonic()
        try:
            with socket.create_connection((self.host, self.port), HEALTH_S, (PROBER, 0)) as connection:
                connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                raw = connection.recv(4_096)
        except OSError as error:
            self.faults.append(f"/healthz: {error!r} after {time.monotonic() - began:.2f} s")
        else:
            if b" 200 " not in raw[:20]:
                self.faults.append(f"/healthz: {raw!r}")
        self.probes += 1
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)

    # --- attacking ----------------------------------------------------------------------------

    def judge(self, attack, status, body=b""):
        """Count a response; a failure of the gateway is a fault."""
        self.statuses[status] += 1
        if status >= 500:
            code = re.search(rb'"(?:code|err_code)":\s*"([^"]*)"', body)
            if status != 503 or code is None or code[1].decode().lower() not in _DOCUMENTED_503:
                self.faults.append(f"{attack}: {status} {body[:200]!r}")

    async def send(self, attack, *pieces, wait_s=10.0, pause_s=0.0):
        """Send bytes on a connection of their own, and judge every answer until it is closed."""
        raw = b""
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(wait_s):
                reader, writer = await asyncio.open_connection(self.host, self.port)
                try:
                    for piece in pieces:
                        writer.write(piece)
                        await writer.drain()
                        await asyncio.sleep(pause_s)
                    while piece := await reader.read(65_536):
                        raw += piece
                finally:
                    writer.transport.abort()
        for answer in re.split(rb"(?=HTTP/1\.1 \d{3} )", raw):
            if answer.startswith(b"HTTP/1.1 "):
                self.judge(attack, int(answer[9:12]), answer.partition(b"\r\n\r\n")[2])
        return raw

    # --- afterwards ---------------------------------------------------------------------------

    def report(self):
        """A summary of responses, probes and memory."""
        return json.dumps(
            {
                "answers": {str(status): count for status, count in sorted(self.statuses.items())},
                "health probes": self.probes,
                "slowest health probe (s)": round(self.slowest_s, 3),
                "most memory": f"{self.most_memory / 2**20:.0f} MiB",
                "log (bytes)": len(self.log()),
                "faults": self.faults[:20],
            },
            indent=2,
        )

    def check(self):
        """Fail unless the process is alive, was always healthy, stayed small and logged no traceback."""
        log = self.log()
        assert self.is_alive, log[-2_000:]
        assert self.probes, "nothing was watched"
        assert not self.faults, self.report()
        assert self.most_memory < MEMORY, self.report()
        assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:4_000]
