"""Gateways that share a store of sessions, their agents, and the lines between them and their clients."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from listening_gateway import GatewayUnderTest
from resuming_agent import Session, serve_session

from parley_gateway.apis.sessions.keeper import SessionKeeper
from parley_gateway.metrics import Metrics
from parley_gateway.security.watched import WatchedFile
from parley_gateway.takeover.errors import TakeoverUnavailableError
from parley_gateway.takeover.sealing import Sealer, read_seal_keys
from parley_gateway.takeover.settings import TakeoverSettings
from parley_gateway.takeover.store import Entry


class MemoryStore:
    """A store for the gateways of one process; `is_away` says that it does not answer."""

    def __init__(self):
        self.entries = {}
        self.writes = 0
        self.is_away = False

    @property
    def is_available(self):
        return not self.is_away

    async def find(self, name):
        epoch, data = self._get(name)
        return None if data is None else Entry(epoch, data)

    async def look(self, name):
        epoch, data = self._get(name)
        return epoch or 0, data

    async def save(self, name, epoch, data, keep_s):
        if (self._get(name)[0] or 0) > epoch:
            return False
        self.entries[name] = epoch, data
        self.writes += 1
        return True

    async def refresh(self, name, epoch, keep_s):
        found, data = self._get(name)
        return "lost" if found not in (None, epoch) else "gone" if data is None else "kept"

    async def claim(self, name, entry, data, keep_s):
        if self._get(name) != (entry.epoch, entry.data):
            return False
        self.entries[name] = entry.epoch + 1, data
        return True

    async def end(self, name, epoch, *, is_over):
        if self._get(name)[0] in (None, epoch):
            self.entries[name] = epoch + is_over, None

    async def aclose(self):
        pass

    def _get(self, name):
        if self.is_away:
            raise TakeoverUnavailableError("away")
        return self.entries.get(name, (None, None))


class Line:
    """A TCP connection's way to a gateway."""

    def __init__(self, port):
        self._port = port
        self._writers = set()
        self._tasks = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self.is_cut = False

    async def start(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self):
        """End all connections as a process does that is killed, and let none through any more."""
        self.is_cut = True
        for writer in self._writers:
            writer.transport.abort()

    def freeze(self):
        """From now on nothing comes through, and neither side notices."""
        self._flows.clear()

    async def stop(self):
        self._flows.set()
        self.cut()
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader, writer):
        task = asyncio.current_task()
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            if self.is_cut:
                return
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._port)
            self._writers.add(inner_writer)
            await asyncio.gather(self._pass(reader, inner_writer), self._pass(inner_reader, writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            self._tasks.discard(task)

    async def _pass(self, reader, writer):
        with suppress(OSError):
            while data := await reader.read(65_536):
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
        writer.close()


class Gateways:
    """Gateways with one agent each; ``sessions`` has those of each agent."""

    def __init__(self, keys_file: Path, *, memory: MemoryStore | None = None, url: str = ""):
        self.keys_file = keys_file
        self.memory = memory
        self.url = url
        self.all: list[GatewayUnderTest] = []
        self.sessions: list[list[Session]] = []
        self.lines: list[Line] = []

    async def start(self, takeover=None, **parts) -> GatewayUnderTest:
        sessions: list[Session] = []

        async def serve(stream):
            await serve_session(stream, sessions.append)

        settings = {"hold_s": 5.0, "store_timeout_s": 5.0} | (takeover or {})
        keeper = None
        if self.memory is None:
            settings |= {"store": self.url, "keys_file": str(self.keys_file)}
        else:
            sealer = Sealer(WatchedFile(self.keys_file, read_seal_keys))
            keeper = SessionKeeper(TakeoverSettings(**settings), self.memory, sealer, Metrics())
        parts["listen"] = {"instance": f"gateway-{len(self.all)}"} | parts.get("listen", {})
        parts["takeover"] = settings if keeper is None else {}
        one = GatewayUnderTest((serve,), parts, keeper)
        await one.start()
        self.all.append(one)
        self.sessions.append(sessions)
        line = Line(int(one.url.rpartition(":")[2]))
        await line.start()
        self.lines.append(line)
        return one

    @property
    def urls(self):
        return [line.url for line in self.lines]

    def user_of(self):
        """The number of the gateway that has a session now."""
        (number,) = (number for number, one in enumerate(self.all) if one.gateway.calls.count)
        return number

    async def stop(self):
        for line in self.lines:
            await line.stop()
        for one in self.all:
            await one.stop()
