"""The real server and the real gateway, each of which can be stopped and started again in its place."""

from __future__ import annotations

import asyncio
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path

from parley.launcher import EmbeddedServer, ServerOptions

HERE = Path(__file__).parent
_START_S = 120.0
_STOP_S = 60.0


def free_ports(count):
    """Unused ports."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@contextmanager
def forwarding(port, address):
    """A server that appears at a port: whatever comes there is passed on to an address."""
    host, _, to_port = address.rpartition(":")

    async def pump(reader, writer):
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader, writer):
        there = await asyncio.open_connection(host, int(to_port))
        try:
            await asyncio.gather(pump(reader, there[1]), pump(there[0], writer))
        finally:
            for one in (writer, there[1]):
                one.transport.abort()

    async def run(stop, listening):
        async with await asyncio.start_server(serve, "127.0.0.1", port):
            listening.set_result((asyncio.get_running_loop(), stop))
            await stop.wait()

    listening = Future()
    thread = threading.Thread(target=lambda: asyncio.run(run(asyncio.Event(), listening)))
    thread.start()
    loop, stop = listening.result(_START_S)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(_STOP_S)


@contextmanager
def redis_server(program, log):
    """A Redis of its own at a free port: its URL."""
    (port,) = free_ports(1)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [program, "--port", str(port), "--save", "", "--bind", "127.0.0.1"], stdout=output
        )
    try:
        deadline = time.monotonic() + _START_S
        while b"Ready to accept" not in log.read_bytes():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.kill()
        process.wait()


_RESTAURANT = """
instructions = "You are the voice of the restaurant Bella Vista."
greeting = "Good day."

[page]
title = "Bella Vista"
colour = "#8a1550"
examples = ["a table for two"]
"""


class Triton:
    """The models of the tiny profile, and one agent besides the server's own."""

    def __init__(self, folder):
        grpc, http, metrics = free_ports(3)
        ports = {"grpc_port": grpc, "http_port": http, "metrics_port": metrics}
        agents = folder / "agents"
        agents.mkdir()
        (agents / "restaurant.toml").write_text(_RESTAURANT)
        environment = {"PARLEY_VOICE_AGENT_AGENTS": str(agents)}
        self._options = ServerOptions(state_dir=folder, environment=environment, **ports)
        self.address = f"127.0.0.1:{grpc}"
        self._server = None

    def start(self):
        self._server = EmbeddedServer(self._options)
        self._server.start()

    def stop(self):
        if self._server is not None:
            self._server.stop()
            self._server = None


class GatewayProcess:
    """A gateway of its own process; ``settings``: part_field → text."""

    def __init__(self, server, log, **settings):
        (self.port,) = free_ports(1)
        defaults = {
            "listen_port": str(self.port),
            "listen_drain_s": "0.3",
            "servers_addresses": server,
        }
        named = {f"PARLEY_GATEWAY_{name}".upper(): text for name, text in (defaults | settings).items()}
        self._environment = {**os.environ, **named}
        self._log = log
        self._process = None
        self.url = f"http://127.0.0.1:{self.port}"

    def start(self):
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / "run_gateway.py")],
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            deadline = time.monotonic() + _START_S
            ready = selector.select(deadline - time.monotonic())
        line = self._process.stdout.readline() if ready else ""
        assert line.strip() == self.url, self._log.read_text()

    def stop(self, number=signal.SIGTERM):
        if self._process is None:
            return
        self._process.send_signal(number)
        try:
            self._process.wait(_STOP_S)
        finally:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()
            self._process = None
