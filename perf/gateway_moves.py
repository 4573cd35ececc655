"""Calls that outlive their gateway, by protocol: ``make gateway-moves``; perf/README.md.

One server, a Redis and two gateways run on this machine. All calls begin at the first gateway, and their
agents tell a story. Three seconds later the gateway is killed, and each client comes back at the second one,
as its protocol says. It prints how many calls were lost, and how long no audio came to the others.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import math
import secrets
import signal
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from xml.etree import ElementTree as ET

import httpx
import numpy as np
from aiortc import RTCConfiguration, RTCDataChannel, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import AudioStreamTrack, MediaStreamError
from av import AudioFrame
from harness.program import run_program
from harness.report import describe_processor, make_table, write_json
from harness.servers import Gateway, Redis, ThisMachine, local_gateway, local_server, remove_left
from harness.stats import p50_p95, text_of
from numpy.typing import NDArray
from rich.console import Console
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from parley.launcher.options import ROOT
from parley.timeouts import cancel_all
from parley_client.audio.files import read_speech
from parley_testing.conform import twilio
from parley_testing.conform.connection import to_mulaw

_STORY = ROOT / "tests/data/conversation/06-story.wav"
_AUTH_TOKEN = secrets.token_hex(16)
_PUBLIC_URL = "https://voice.example"
_TOLD_S = 3.0
_BACK_S = 15.0
_LOUD = 300
_FRAME_MS = 20


class Caller(ABC):
    """One call; ``on_audio`` is called whenever audible audio of the agent has come."""

    def __init__(self, on_audio: Callable[[], None]) -> None:
        self._on_audio = on_audio
        self._stack = AsyncExitStack()
        self._id = ""

    @abstractmethod
    async def begin(self, url: str) -> None:
        """Open the call, and ask for a story."""

    @abstractmethod
    async def come_back(self, url: str) -> None:
        """Go on at another gateway, as the protocol says; raises where it refuses."""

    async def close(self) -> None:
        """Leave the call."""
        await self._stack.aclose()

    def _hold(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` until the call is left."""
        task = asyncio.ensure_future(work)
        self._stack.push_async_callback(cancel_all, [task])


class RealtimeCaller(Caller):
    """OpenAI Realtime over WebSocket: connects again with the session's id."""

    async def begin(self, url: str) -> None:
        """See :class:`Caller`."""
        socket = await self._connect(url, "model=gpt-realtime")
        for event in _story_events():
            await socket.send(json.dumps(event))

    async def come_back(self, url: str) -> None:
        """See :class:`Caller`."""
        await self._connect(url, f"session_id={self._id}")

    async def _connect(self, url: str, query: str) -> ClientConnection:
        address = f"ws{url.removeprefix('http')}/v1/realtime?{query}"
        socket = await self._stack.enter_async_context(connect(address, max_size=None))
        created = json.loads(await socket.recv())
        if created["type"] != "session.created":
            raise ConnectionError(created["error"]["code"])
        self._id = created["session"]["id"]
        self._hold(self._read(socket))
        return socket

    async def _read(self, socket: ClientConnection) -> None:
        with suppress(WebSocketException):
            async for message in socket:
                event = json.loads(message)
                if event["type"] == "response.output_audio.delta" and _is_loud(
                    np.frombuffer(base64.b64decode(event["delta"]), "<i2")
                ):
                    self._on_audio()


class WebRtcCaller(Caller):
    """OpenAI Realtime over WebRTC: sends another offer with the session's id."""

    async def begin(self, url: str) -> None:
        """See :class:`Caller`."""
        channel = await self._connect(url, "model=gpt-realtime")
        for event in _story_events():
            channel.send(json.dumps(event))

    async def come_back(self, url: str) -> None:
        """See :class:`Caller`."""
        await self._connect(url, f"session_id={self._id}")

    async def _connect(self, url: str, query: str) -> RTCDataChannel:
        peer = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self._stack.push_async_callback(peer.close)
        peer.addTrack(AudioStreamTrack())
        channel = peer.createDataChannel("oai-events")
        created: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def on_message(message: str) -> None:
            event = json.loads(message)
            if event["type"] == "session.created" and not created.done():
                created.set_result(event["session"]["id"])

        channel.on("message", on_message)
        peer.on("track", lambda track: self._hold(self._read(track)))
        await peer.setLocalDescription(await peer.createOffer())
        async with httpx.AsyncClient(timeout=_BACK_S) as http:
            answer = await http.post(
                f"{url}/v1/realtime/calls?{query}",
                content=peer.localDescription.sdp,
                headers={"Content-Type": "application/sdp"},
            )
        answer.raise_for_status()
        await peer.setRemoteDescription(RTCSessionDescription(answer.text, "answer"))
        self._id = await created
        return channel

    async def _read(self, track: AudioStreamTrack) -> None:
        with suppress(MediaStreamError):
            while True:
                frame = await track.recv()
                assert isinstance(frame, AudioFrame)
                if _is_loud(frame.to_ndarray().astype(np.int16, copy=False)):
                    self._on_audio()


class TwilioCaller(Caller):
    """Twilio Media Streams: asks the action of ``<Connect>`` what follows, and connects as it says."""

    async def begin(self, url: str) -> None:
        """See :class:`Caller`."""
        self._id = f"CA{secrets.token_hex(16)}"
        socket = await self._connect(url, await self._ask(url, "/v1/twilio/voice"))
        self._hold(self._speak(socket))

    async def come_back(self, url: str) -> None:
        """See :class:`Caller`."""
        await self._connect(url, await self._ask(url, "/v1/twilio/ended"))

    async def _ask(self, url: str, path: str) -> ET.Element:
        form = {"CallSid": self._id, "CallStatus": "in-progress"}
        headers = twilio.sign(_AUTH_TOKEN, _PUBLIC_URL + path, form)
        headers["Content-Type"] = "application/x-www-form-urlencoded"
        async with httpx.AsyncClient(timeout=_BACK_S) as http:
            answer = await http.post(url + path, content=urlencode(form), headers=headers)
        wanted = ET.fromstring(answer.raise_for_status().text).find("Connect/Stream")  # noqa: S314 - ours
        if wanted is None:
            raise ConnectionError(f"the gateway answers {answer.text}")
        return wanted

    async def _connect(self, url: str, wanted: ET.Element) -> ClientConnection:
        address = wanted.get("url", "")
        path = address.removeprefix(f"wss{_PUBLIC_URL.removeprefix('https')}")
        signed = twilio.sign(_AUTH_TOKEN, address, {})
        socket = await self._stack.enter_async_context(
            connect(f"ws{url.removeprefix('http')}{path}", additional_headers=signed, max_size=None)
        )
        given = {one.get("name"): one.get("value") for one in wanted.findall("Parameter")}
        start = {"callSid": self._id, "customParameters": given}
        await socket.send(json.dumps({"event": "connected"}))
        await socket.send(json.dumps({"event": "start", "streamSid": "MZ1", "start": start}))
        self._hold(self._read(socket))
        return socket

    async def _speak(self, socket: ClientConnection) -> None:
        audio = to_mulaw(read_speech(_STORY)) + b"\xff" * 8 * 2_000
        step = 8 * _FRAME_MS
        with suppress(WebSocketException):
            for at in range(0, len(audio), step):
                payload = base64.b64encode(audio[at : at + step]).decode()
                media = {"track": "inbound", "payload": payload}
                await socket.send(json.dumps({"event": "media", "streamSid": "MZ1", "media": media}))
                await asyncio.sleep(_FRAME_MS / 1000)

    async def _read(self, socket: ClientConnection) -> None:
        with suppress(WebSocketException):
            async for message in socket:
                event = json.loads(message)
                if event["event"] == "media":
                    self._on_audio()
                elif event["event"] == "mark":
                    # Played as it comes: what waits at the telephone is no part of the measurement.
                    await socket.send(json.dumps(event))


_CALLERS: dict[str, type[Caller]] = {
    "openai-realtime": RealtimeCaller,
    "webrtc": WebRtcCaller,
    "twilio": TwilioCaller,
}


def _story_events() -> list[dict[str, object]]:
    content = [{"type": "input_text", "text": "tell me a story"}]
    item = {"type": "message", "role": "user", "content": content}
    return [
        {"type": "session.update", "session": {"type": "realtime"}},
        {"type": "conversation.item.create", "item": item},
        {"type": "response.create"},
    ]


def _is_loud(samples: NDArray[np.int16]) -> bool:
    return bool(samples.size) and int(np.abs(samples.astype(np.int32)).max()) > _LOUD


@dataclass
class _Call:
    """What came of one call."""

    heard: list[float] = field(default_factory=list)
    """When audible audio came."""
    failure: str = ""

    def on_audio(self) -> None:
        """Audible audio has come."""
        self.heard.append(time.monotonic())

    def gap_ms(self, killed: float) -> float | None:
        """From the last audio before the kill to the first behind it; None: none came."""
        before = [at for at in self.heard if at <= killed]
        after = [at for at in self.heard if at > killed + 0.05]
        return 1_000 * (after[0] - before[-1]) if before and after else None


async def _hold_calls(kind: type[Caller], count: int, gateways: Sequence[Gateway]) -> dict[str, Any]:
    """Calls of one protocol whose gateway is killed."""
    calls = [_Call() for _ in range(count)]
    callers = [kind(call.on_audio) for call in calls]
    try:
        for caller in callers:
            await caller.begin(gateways[0].url)
        async with asyncio.timeout(_BACK_S):
            while not all(call.heard for call in calls):  # noqa: ASYNC110 - callbacks set it
                await asyncio.sleep(0.02)
        await asyncio.sleep(_TOLD_S)
        killed = time.monotonic()
        gateways[0].signal(signal.SIGKILL)
        await asyncio.gather(
            *(_come_back(*pair, gateways[1].url) for pair in zip(callers, calls, strict=True))
        )
        until = time.monotonic() + _BACK_S
        while time.monotonic() < until and any(call.gap_ms(killed) is None for call in calls):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    finally:
        for caller in callers:
            await caller.close()
    gaps = [gap for call in calls if (gap := call.gap_ms(killed)) is not None and not call.failure]
    return {
        "calls": count,
        "lost": count - len(gaps),
        "gaps_ms": gaps,
        "failures": [c.failure for c in calls],
    }


async def _come_back(caller: Caller, call: _Call, url: str) -> None:
    try:
        async with asyncio.timeout(_BACK_S):
            await caller.come_back(url)
    except (OSError, TimeoutError, httpx.HTTPError, WebSocketException) as error:
        call.failure = f"{type(error).__name__}: {error}"


def _measure(name: str, count: int, server: str, redis: str, folder: Path) -> dict[str, Any]:
    """One protocol, with two gateways of its own."""
    settings = {
        "PARLEY_GATEWAY_TAKEOVER_STORE": redis,
        "PARLEY_GATEWAY_TAKEOVER_KEYS_FILE": str(folder / "keys"),
        "PARLEY_GATEWAY_REALTIME_WEBRTC": "true",
        "PARLEY_GATEWAY_LISTEN_PUBLIC_URL": _PUBLIC_URL,
        "PARLEY_GATEWAY_TWILIO_AUTH_TOKEN_FILE": str(folder / "token"),
    }
    with ExitStack() as stack:
        gateways = [
            stack.enter_context(
                local_gateway(server, {**settings, "PARLEY_GATEWAY_LISTEN_INSTANCE": instance})
            )
            for instance in ("first", "second")
        ]
        return asyncio.run(_hold_calls(_CALLERS[name], count, gateways))


def _run(args: argparse.Namespace, console: Console) -> int:
    results: dict[str, dict[str, Any]] = {}
    with (
        remove_left(),
        tempfile.TemporaryDirectory(prefix="parley-gateway-moves-") as name,
        ExitStack() as stack,
    ):
        folder = Path(name)
        (folder / "keys").write_bytes(base64.b64encode(secrets.token_bytes(32)))
        (folder / "token").write_text(_AUTH_TOKEN)
        redis = Redis(ThisMachine("redis"), folder)
        asyncio.run(redis.start())
        stack.callback(redis.kill)
        server = stack.enter_context(local_server("gateway-moves"))
        for protocol in args.protocol or _CALLERS:
            results[protocol] = _measure(protocol, args.calls, server.address, redis.url, folder)
    table = make_table(
        f"Gateway killed, {describe_processor()}", "protocol", "calls", "lost", "gap p50, ms", "p95"
    )
    for protocol, result in results.items():
        p50, p95 = (text_of([figure]) for figure in p50_p95(result["gaps_ms"]) or (math.nan, math.nan))
        table.add_row(protocol, str(result["calls"]), str(result["lost"]), p50, p95)
    console.print(table)
    for failure in sorted({one for result in results.values() for one in result["failures"] if one}):
        console.print(f"  {failure}", markup=False)
    if args.json:
        write_json(args.json, results)
    return int(any(result["lost"] for result in results.values()))


def main() -> int:
    """Measure; 1 if a call was lost."""
    parser = argparse.ArgumentParser(prog="gateway-moves", description=__doc__)
    parser.add_argument("--protocol", choices=_CALLERS, action="append", help="default: all")
    parser.add_argument("--calls", type=int, default=8, help="of each protocol (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    return run_program("gateway-moves", lambda console: _run(args, console), OSError)
