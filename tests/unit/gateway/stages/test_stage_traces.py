"""The trace of a caller, passed on to single models."""

import asyncio
import base64
import json

import pytest
from deepgram_client import rest, say
from fake_models import Chat, Voice
from recordings_for_tests import TONE, wav
from websockets.asyncio.client import connect

from parley.asr.messages import TranscribeReply
from parley.llm.messages import Completed

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
LINEAR = "encoding=linear16&sample_rate=16000"
CHAT = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hello"}]}
SECOND = base64.b64encode(bytes(48_000)).decode()


def transcribed(gateway):
    ((_, message),) = gateway.models.transcribed
    return message.traceparent


def heard(gateway):
    options = gateway.models.heard[0][3].options
    return options.traceparent if options else ""


def asked(gateway):
    return gateway.models.asked[0].get("traceparent", "")


async def transcribe_file(gateway, headers, **fields):
    answer = await gateway.http.post(
        "/v1/audio/transcriptions",
        files={"file": ("a.wav", wav())},
        data={"model": "whisper-1", **fields},
        headers=headers,
    )
    assert answer.status_code == 200


async def openai_recording(gateway, headers):
    gateway.models.transcript = TranscribeReply(text="hello", duration_ms=1_000)
    await transcribe_file(gateway, headers)
    return transcribed(gateway)


async def openai_events(gateway, headers):
    await transcribe_file(gateway, headers, stream="true")
    return heard(gateway)


async def deepgram_recording(gateway, headers):
    gateway.models.transcript = TranscribeReply(text="hello", duration_ms=1_000)
    answer = await gateway.http.post("/v1/listen", content=wav(), headers=headers)
    assert answer.status_code == 200
    return transcribed(gateway)


async def deepgram_stream(gateway, headers):
    async with connect(f"{gateway.ws_url}/v1/listen?{LINEAR}", additional_headers=headers) as socket:
        await socket.send(TONE[:600].tobytes())
        await say(socket, "CloseStream")
        await rest(socket)
    return heard(gateway)


async def realtime_transcription(gateway, headers):
    url = f"{gateway.ws_url}/v1/realtime?intent=transcription"
    async with connect(url, additional_headers=headers) as socket:
        await socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": SECOND}))
        await gateway.models.hearing.wait()
    return heard(gateway)


async def chat(gateway, headers):
    Chat(gateway.models, last=Completed(finish_reason="stop"))
    assert (await gateway.http.post("/v1/chat/completions", json=CHAT, headers=headers)).status_code == 200
    return asked(gateway)


async def streamed_chat(gateway, headers):
    Chat(gateway.models, last=Completed(finish_reason="stop"))
    answer = await gateway.http.post("/v1/chat/completions", json=CHAT | {"stream": True}, headers=headers)
    assert answer.text.endswith("data: [DONE]\n\n")
    return asked(gateway)


async def openai_speech(gateway, headers):
    Voice(gateway.models, rate=24_000)
    body = {"model": "tts-1", "voice": "alloy", "input": "Hello.", "response_format": "pcm"}
    assert (await gateway.http.post("/v1/audio/speech", json=body, headers=headers)).content
    return asked(gateway)


async def deepgram_file(gateway, headers):
    Voice(gateway.models, rate=24_000)
    url = "/v1/speak?encoding=linear16&container=none"
    assert (await gateway.http.post(url, json={"text": "Hello."}, headers=headers)).content
    return asked(gateway)


async def deepgram_voice(gateway, headers):
    Voice(gateway.models, rate=24_000)
    async with connect(f"{gateway.ws_url}/v1/speak?{LINEAR}", additional_headers=headers) as socket:
        await say(socket, "Speak", text="Hello.")
        await say(socket, "Close")
        await rest(socket)
    return asked(gateway)


INTERFACES = [
    openai_recording,
    openai_events,
    deepgram_recording,
    deepgram_stream,
    realtime_transcription,
    chat,
    streamed_chat,
    openai_speech,
    deepgram_file,
    deepgram_voice,
]


@pytest.mark.parametrize("ask", INTERFACES)
async def test_the_header_goes_to_the_model(gateway, ask):
    async with asyncio.timeout(10):
        assert await ask(gateway, {"traceparent": PARENT}) == PARENT


@pytest.mark.parametrize("ask", INTERFACES)
async def test_without_the_header_there_is_no_trace(gateway, ask):
    async with asyncio.timeout(10):
        assert await ask(gateway, {}) == ""
