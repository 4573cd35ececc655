"""Transcription sessions as WebSockets: how they are opened, and end."""

import asyncio
import base64
import json

import pytest
from listening_gateway import closed, receive
from websockets.asyncio.client import connect

from parley.errors import DeadlineExceededError
from parley_gateway.apis.realtime import transcription
from parley_gateway.security.keys import new_key

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
    monkeypatch.setattr(transcription, "Recognition", StalledRecognition)


async def test_a_recogniser_that_takes_no_audio_ends_the_session(gateway, stalled):
    one = await gateway()
    async with connect(f"{one.ws_url}/v1/realtime?intent=transcription") as socket:
        await socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": SECOND}))
        assert (await receive(socket, "error"))["error"]["code"] == "deadline_exceeded"
        assert await closed(socket) == (1013, "deadline_exceeded")


async def test_a_secret_needs_no_more_than_its_session_does(gateway, tmp_path):
    key = new_key("scribe", ["transcribe"])
    (tmp_path / "keys.toml").write_text(key.line)
    one = await gateway(security={"keys_file": str(tmp_path / "keys.toml")})
    brought = {"Authorization": f"Bearer {key.secret}"}
    audio = {"input": {"transcription": {"language": "de"}}}
    wanted = {"session": {"type": "transcription", "audio": audio}}
    answer = await one.http.post("/v1/realtime/client_secrets", json=wanted, headers=brought)
    assert answer.status_code == 200, answer.text
    shown = {"Authorization": f"Bearer {answer.json()['value']}"}
    async with connect(f"{one.ws_url}/v1/realtime", additional_headers=shown) as socket:
        created = (await receive(socket, "session.created"))["session"]
        assert created["type"] == "transcription"
        assert created["audio"]["input"]["transcription"]["language"] == "de"
    for more in ({}, {"session": {"type": "realtime"}}):
        answer = await one.http.post("/v1/realtime/client_secrets", json=more, headers=brought)
        assert answer.status_code == 403
