"""A small HTTP server with given answers that records requests."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass
class Received:
    method: str
    target: str
    headers: dict[str, str]
    body: bytes


@dataclass
class LocalHttp:
    port: int = 0
    received: list[Received] = field(default_factory=list)
    answers: list[bytes | None] = field(default_factory=list)
    """Whole responses, in order; None: none ever comes. What is not said is answered with an empty object."""
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a client that waits for an answer has gone."""

    def url(self, path="/"):
        return f"http://127.0.0.1:{self.port}{path}"

    async def serve(self, reader, writer):
        try:
            while (line := await reader.readline()).strip():
                await self._answer(line, reader, writer)
        except ConnectionError:
            self.hung_up.set()
        finally:
            writer.close()

    async def _answer(self, line, reader, writer):
        method, target, _ = line.decode().split(" ")
        headers = {}
        while (header := (await reader.readline()).decode().strip()) != "":
            name, _, value = header.partition(":")
            headers[name.lower()] = value.strip()
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        self.received.append(Received(method, target, headers, body))
        self.arrived.set()
        answer = self.answers.pop(0) if self.answers else response("{}")
        if answer is None:
            assert await reader.read() == b"", "nothing more is sent"
            self.hung_up.set()
            return
        writer.write(answer)
        await writer.drain()


def response(body="", status="200 OK", kind="application/json", length=None, **headers):
    data = body if isinstance(body, bytes) else body.encode()
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}"]
    lines.append(f"Content-Length: {len(data) if length is None else length}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + data


@asynccontextmanager
async def local_http():
    made = LocalHttp()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    async with server:
        yield made
        server.close()
