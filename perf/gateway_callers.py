"""Callers of ``bench_gateway.py``: the same people by gRPC and through the gateway."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import httpx
from gateway_echo import STAMP_BYTES
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as connect_socket

from parley import protocol
from parley_client import connect
from parley_client.call import Call
from parley_client.events import AgentAudio

_SETTLE_S = 1.0
_PAUSE_S = 0.05


@dataclass
class Way:
    """The times of all frames that went one way (milliseconds)."""

    there: list[float] = field(default_factory=list)
    back: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)
    """How late the client itself was with a frame: not the way's fault."""

    def note(self, stamps: bytes) -> None:
        """Take in an echoed frame."""
        now = time.monotonic_ns()
        sent, received, returned = (
            int.from_bytes(stamps[at * STAMP_BYTES : (at + 1) * STAMP_BYTES], "little") for at in range(3)
        )
        self.there.append((received - sent) / 1e6)
        self.back.append((now - returned) / 1e6)


async def _send_in_time(
    send: Callable[[bytes], Any], args: argparse.Namespace, seconds: float, way: Way, phase: float
) -> None:
    """A frame every ``frame_ms``; callers do not speak in step."""
    size = args.frame_ms * 32
    began = time.monotonic() + phase * args.frame_ms / 1000
    for number in range(int(seconds * 1000 / args.frame_ms)):
        due = began + number * args.frame_ms / 1000
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        way.late.append(1000 * (time.monotonic() - due))
        await send(time.monotonic_ns().to_bytes(STAMP_BYTES, "little") + bytes(size - STAMP_BYTES))


async def _direct_caller(call: Call, args: argparse.Namespace, way: Way, phase: float) -> None:
    async def hear() -> None:
        async for event in call:
            if isinstance(event, AgentAudio):
                way.note(event.samples[: 3 * STAMP_BYTES // 2].tobytes())

    hearing = asyncio.create_task(hear())
    await _send_in_time(call.send_audio, args, args.seconds, way, phase)
    await asyncio.sleep(_SETTLE_S)
    hearing.cancel()


async def _socket_caller(socket: ClientConnection, args: argparse.Namespace, way: Way, phase: float) -> None:
    async def hear() -> None:
        async for message in socket:
            if isinstance(message, bytes):
                way.note(message[: 3 * STAMP_BYTES])

    hearing = asyncio.create_task(hear())
    await _send_in_time(socket.send, args, args.seconds, way, phase)
    await asyncio.sleep(_SETTLE_S)
    hearing.cancel()


async def open_sockets(stack: AsyncExitStack, url: str, count: int) -> list[ClientConnection]:
    """Sessions that are connected."""
    sockets = []
    async with httpx.AsyncClient(base_url=url) as http:
        for _ in range(count):
            created = (await http.post("/v1/sessions")).raise_for_status().json()
            socket = await stack.enter_async_context(connect_socket(created["stream_url"], compression=None))
            assert json.loads(await socket.recv())["type"] == "connected"
            sockets.append(socket)
    return sockets


async def call_directly(server: str, args: argparse.Namespace, way: Way) -> None:
    """All callers, by gRPC."""
    async with AsyncExitStack() as stack:
        calls = [await stack.enter_async_context(connect(server)) for _ in range(args.sessions)]
        await asyncio.gather(
            *(_direct_caller(call, args, way, place / len(calls)) for place, call in enumerate(calls))
        )


async def call_through(url: str, args: argparse.Namespace, way: Way, idle: int = 0) -> None:
    """All callers, through the gateway, beside ``idle`` sessions that say nothing."""
    async with AsyncExitStack() as stack:
        await open_sockets(stack, url, idle)
        sockets = await open_sockets(stack, url, args.sessions)
        await asyncio.gather(
            *(_socket_caller(socket, args, way, place / len(sockets)) for place, socket in enumerate(sockets))
        )


async def ask_directly(server: str, args: argparse.Namespace, times: list[float]) -> None:
    """Questions that the agent answers at once, by gRPC (milliseconds)."""
    async with AsyncExitStack() as stack:
        calls = [await stack.enter_async_context(connect(server)) for _ in range(args.sessions)]

        async def ask(call: Call) -> None:
            for _ in range(args.questions):
                began = time.monotonic()
                call.update(protocol.Update())
                while not isinstance(await anext(call), protocol.Updated):
                    pass
                times.append(1000 * (time.monotonic() - began))
                await asyncio.sleep(_PAUSE_S)

        await asyncio.gather(*(ask(call) for call in calls))


async def ask_through(url: str, args: argparse.Namespace, times: list[float]) -> None:
    """The same through the gateway."""
    async with AsyncExitStack() as stack:
        sockets = await open_sockets(stack, url, args.sessions)

        async def ask(socket: ClientConnection) -> None:
            for _ in range(args.questions):
                began = time.monotonic()
                await socket.send('{"type": "update"}')
                while b'"updated"' not in await socket.recv(decode=False):
                    pass
                times.append(1000 * (time.monotonic() - began))
                await asyncio.sleep(_PAUSE_S)

        await asyncio.gather(*(ask(socket) for socket in sockets))
