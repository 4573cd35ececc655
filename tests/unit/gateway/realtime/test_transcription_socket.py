"""Transcription sessions as WebSockets: how they are opened, and end."""

import asyncio
import base64
import json

import pytest
from listening_gateway import closed, receive
from websockets.asyncio.client import connect

from parley.errors import DeadlineExceededError
from parley_gateway.doors.realtime import transcribing

SECOND = base64.b64encode(bytes(48_000)).decode()


class StalledRecognition:
    """A stream that takes no audio, and says nothing."""

    def __init__(self, server, options, *, model):
        pass

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    def __aiter__(self):
        return self

    async def __anext__(self):
        await asyncio.get_running_loop().create_future()

    async def send_all(self, audio):
        raise DeadlineExceededError("the recogniser took no audio")


@pytest.fixture
def stalled(monkeypatch):
    monkeypatch.setattr(transcribing, "Recognition", StalledRecognition)


async def test_a_recogniser_that_takes_no_audio_ends_the_session(gateway, stalled):
    one = await gateway()
    async with connect(f"{one.ws_url}/v1/realtime?intent=transcription") as socket:
        await socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": SECOND}))
        assert (await receive(socket, "error"))["error"]["code"] == "deadline_exceeded"
        assert await closed(socket) == (1013, "deadline_exceeded")
