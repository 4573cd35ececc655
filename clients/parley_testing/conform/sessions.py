"""Parley's sessions by REST and WebSocket (docs/gateway.md), and their subprotocol ``parley.design``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from parley_testing.conform.checks import Checks
from parley_testing.conform.connection import (
    CheckedSocket,
    FailedError,
    RefusedByServerError,
    Samples,
    Target,
    expect,
    expect_speech,
)

CHECKS = Checks()
_WEATHER = {
    "name": "get_weather",
    "description": "Get the weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


@asynccontextmanager
async def _open(
    target: Target, protocol: str = "v1", **options: Any
) -> AsyncIterator[tuple[CheckedSocket, str]]:
    """A stream, and the id of its session."""
    query = "?protocol=design" if protocol == "design" else ""
    session = (await target.request("POST", f"/v1/sessions{query}", json=options)).json()
    path = f"/v1/sessions/{session['session_id']}/stream"
    headers = {"Authorization": f"Bearer {session['token']}"}
    async with target.connect(path, headers=headers, subprotocol=f"parley.{protocol}") as peer:
        if protocol == "v1":
            await peer.until("connected")
        yield peer, session["session_id"]


def _microphone(peer: CheckedSocket, speech: Samples) -> Any:
    return peer.speaking(lambda samples: peer.socket.send(samples.astype("<i2").tobytes()), speech)


@CHECKS.add
async def greeting(target: Target) -> None:
    """The agent speaks its `greeting`, with a JSON message before each audio."""
    async with _open(target, greeting="Good day.") as (peer, _), _microphone(peer, target.speech[:0]):
        await peer.until("response_done")
        parts = peer.named("audio")
        expect(2 * sum(part["samples"] for part in parts) == len(peer.audio), "samples differ from the audio")
        expect_speech(bytes(peer.audio), parts[0]["sample_rate"])


@CHECKS.add
async def answer(target: Target) -> None:
    """A question is heard, written down and answered; `played` audio is measured by `playback`."""
    async with _open(target) as (peer, _), _microphone(peer, target.question):
        await peer.until("speech_started")
        await peer.until("speech_stopped")
        text = await peer.until("transcript", fits=lambda one: one["is_final"])
        expect(text["text"], "the transcript is empty")
        first = await peer.until("audio")
        playing = {"type": "playback", "response_id": first["response_id"], "played_ms": 100}
        await peer.send(playing)
        await peer.until("response_done")
        expect_speech(bytes(peer.audio), first["sample_rate"])


@CHECKS.add
async def interruption(target: Target) -> None:
    """Speech over an answer stops it: `interrupted` with what was played."""
    async with _open(target) as (peer, _):
        await peer.send({"type": "say", "text": "Once upon a time there was a robot. " * 10})
        first = await peer.until("audio")
        async with _microphone(peer, target.question):
            playing = {"type": "playback", "response_id": first["response_id"], "played_ms": 500}
            await peer.send(playing)
            stopped = await peer.until("interrupted")
        expect(stopped["response_id"] == first["response_id"], "another response was interrupted")
        expect(0 < stopped["played_ms"] <= 500, f"played_ms: {stopped['played_ms']}")


@CHECKS.add
async def typed_text(target: Target) -> None:
    """`text` is answered as speech is."""
    async with _open(target) as (peer, _), _microphone(peer, target.speech[:0]):
        await peer.send({"type": "text", "text": "Hello."})
        await peer.until("response", fits=lambda one: one["text"])
        await peer.until("response_done")


@CHECKS.add
async def tools(target: Target) -> None:
    """A client's tool is requested, and what it gives is spoken."""
    async with _open(target, tools=[_WEATHER]) as (peer, _), _microphone(peer, target.speech[:0]):
        await peer.send({"type": "text", "text": "What's the weather like in Paris?"})
        request = await peer.until("tool_request")
        expect(request["name"] == "get_weather", f"the tool is {request['name']}")
        output = {"celsius": 8, "sky": "foggy"}
        await peer.send({"type": "tool_response", "call_id": request["call_id"], "output": output})
        await peer.until("response_done")


@CHECKS.add
async def broken_messages(target: Target) -> None:
    """Messages that cannot be read get an `error` with `code` and `retryable`; the session goes on."""
    async with _open(target) as (peer, _), _microphone(peer, target.speech[:0]):
        for message in ("{", '{"type": "dance"}', '{"type": "playback", "played_ms": "x"}'):
            await peer.socket.send(message)
            error = await peer.until("error")
            expect(error["code"] and error["retryable"] is False, f"the error is {error}")
        await peer.send({"type": "text", "text": "Hello."})
        await peer.until("response_done")


@CHECKS.add
async def by_rest(target: Target) -> None:
    """`GET …/status` and `…/history` tell of an open session, and `DELETE` ends it: `closed`, 1000."""
    async with _open(target) as (peer, session), _microphone(peer, target.speech[:0]):
        await peer.send({"type": "text", "text": "Hello."})
        await peer.until("response_done")
        await target.request("GET", f"/v1/sessions/{session}/status")
        history = (await target.request("GET", f"/v1/sessions/{session}/history")).json()
        expect("Hello." in str(history), f"the history is {history}")
        await target.request("DELETE", f"/v1/sessions/{session}")
        await peer.until("closed")
        expect(await peer.closed() == 1000, f"the close code is {peer.socket.close_code}")


@CHECKS.add
async def hang_up(target: Target) -> None:
    """`control` with `hangup` ends the session: `closed`, then the close code 1000."""
    async with _open(target) as (peer, _):
        await peer.send({"type": "control", "action": "hangup"})
        await peer.until("closed")
        expect(await peer.closed() == 1000, f"the close code is {peer.socket.close_code}")


@CHECKS.add
async def wrong_options(target: Target) -> None:
    """A session with an option that is not known gets HTTP 400 with `code`, `message` and `retryable`."""
    try:
        async with _open(target, dance=True):
            pass
    except RefusedByServerError as error:
        wanted = all(f'"{name}"' in str(error) for name in ("code", "message", "retryable"))
        expect(error.status == 400 and wanted, str(error))
        return
    raise FailedError("the session was created")


@CHECKS.add
async def design(target: Target) -> None:
    """Subprotocol `parley.design`: `transcript`, `agent_state` and audio of 22.05 kHz."""
    async with _open(target, "design") as (peer, _), _microphone(peer, target.question):
        text = await peer.until("transcript", fits=lambda one: one["is_final"])
        expect(text["text"] and 0 <= text["confidence"] <= 1, f"the transcript is {text}")
        await peer.until("agent_state", fits=lambda state: state["speaking"])
        await peer.until("agent_state", fits=lambda state: not state["speaking"])
        expect_speech(bytes(peer.audio), 22_050)
