"""A slow link: a TCP proxy with delay, jitter and a limit of its bandwidth.

The kernels of small machines lack netem, and rules of nftables cannot delay.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections import deque
from dataclasses import dataclass
from types import TracebackType
from typing import Self

_READ_BYTES = 1460
_BUFFER_BYTES = 256 * 1024
"""On the link, in each direction; then nothing more is read."""


@dataclass
class LinkQuality:
    """How bad a link is; may change while it is in use."""

    delay_s: float = 0.0
    """One way (seconds)."""
    jitter_s: float = 0.0
    """Up to this much more, by chance; the order of bytes stays (seconds)."""
    bytes_per_s: float = 0.0
    """In each direction of each connection; 0: no limit."""


class LinkClock:
    """When bytes come out of one direction of a connection.

    Args:
        quality: Of the link.
        rng: For the jitter.
    """

    def __init__(self, quality: LinkQuality, rng: random.Random) -> None:
        self._quality = quality
        self._rng = rng
        self._free_s = 0.0
        self._last_s = 0.0

    def release_at(self, size: int, now: float) -> float:
        """When this many bytes that are sent now have arrived.

        Args:
            size: In bytes; 0: the end.
            now: Seconds.
        """
        quality = self._quality
        self._free_s = max(self._free_s, now)
        if quality.bytes_per_s:
            self._free_s += size / quality.bytes_per_s
        # What comes later never arrives before.
        self._last_s = max(
            self._last_s, self._free_s + quality.delay_s + self._rng.uniform(0, quality.jitter_s)
        )
        return self._last_s


class SlowLink:
    """A proxy that listens from entering until leaving.

    A connection that is broken on one side is broken on the other; ends of one direction are passed on.

    Args:
        host: Where it listens, at any free port.
        target_host: Where it connects to.
        target_port: …
        quality: Of the link; None: perfect, until the fields of :attr:`quality` are changed.
        seed: For the jitter.
    """

    def __init__(
        self, host: str, target_host: str, target_port: int, quality: LinkQuality | None = None, seed: int = 0
    ) -> None:
        self.quality = quality or LinkQuality()
        self.address = ""
        """``host:port``, once it listens."""
        self.passed_bytes = 0
        """In both directions, of all connections."""
        self._host = host
        self._target = (target_host, target_port)
        self._rng = random.Random(seed)
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._on_connection, self._host, 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        try:
            other_reader, other_writer = await asyncio.open_connection(*self._target)
        except OSError:
            _reset(writer)
            return
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_on(reader, other_writer))
                group.create_task(self._pass_on(other_reader, writer))
            for side in (writer, other_writer):
                side.close()
                await side.wait_closed()
        except* OSError:
            pass  # broken on one side
        finally:
            _reset(writer)
            _reset(other_writer)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on one direction, up to its end."""
        clock, loop = LinkClock(self.quality, self._rng), asyncio.get_running_loop()
        link: deque[tuple[float, bytes]] = deque()
        held, has_data, has_room = 0, asyncio.Event(), asyncio.Event()

        async def read() -> None:
            nonlocal held
            while True:
                data = await reader.read(_READ_BYTES)
                link.append((clock.release_at(len(data), loop.time()), data))
                held += len(data)
                has_data.set()
                if not data:
                    return
                if held > _BUFFER_BYTES:
                    has_room.clear()
                    await has_room.wait()

        async def write() -> None:
            nonlocal held
            while True:
                if not link:
                    has_data.clear()
                    await has_data.wait()
                release_s, data = link[0]
                await asyncio.sleep(max(0.0, release_s - loop.time()))
                if not data:
                    writer.write_eof()
                    return
                writer.write(data)
                await writer.drain()
                link.popleft()
                held -= len(data)
                if held <= _BUFFER_BYTES:
                    has_room.set()
                self.passed_bytes += len(data)

        async with asyncio.TaskGroup() as group:
            group.create_task(read())
            group.create_task(write())


def _reset(writer: asyncio.StreamWriter) -> None:
    """Break a connection off; nothing happens to one that is closed."""
    transport = writer.transport
    if not transport.is_closing():
        transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
    transport.abort()
