"""A call over WebRTC: a question that needs a function, and a story that is interrupted."""

from __future__ import annotations

import asyncio
import fractions
import json
import sys
import time
from collections import deque

import httpx
import numpy as np
import pytest
import soundfile
from aiortc import MediaStreamTrack
from av import AudioFrame

from parley.launcher.options import ROOT
from parley_gateway.servers import ServerSettings
from parley_gateway.serving import running
from parley_gateway.settings import Settings
from parley_gateway.settings_sections import ListenSettings

sys.path += [str(ROOT / "tests/unit/gateway" / folder) for folder in ("realtime", "core")]
sys.path.append(str(ROOT / "tests/unit/client"))

from rtc_client import calling

RATE = 16_000
FRAME = RATE // 50
LOUD = 500
SESSION = {
    "type": "realtime",
    "instructions": "You are a friendly voice assistant.",
    "audio": {
        "input": {
            "transcription": {"model": "whisper-1"},
            "turn_detection": {"type": "semantic_vad", "eagerness": "high"},
        }
    },
    "tools": [
        {
            "type": "function",
            "name": "get_weather",
            "description": "Get the weather in a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "The name of the city."}},
                "required": ["city"],
            },
        }
    ],
}


class Mouth(MediaStreamTrack):
    """Recordings and silence, in real time."""

    kind = "audio"

    def __init__(self):
        super().__init__()
        self._words = deque()
        self._count = 0
        self._began = time.monotonic()

    def say(self, name):
        audio, rate = soundfile.read(ROOT / "tests/data/conversation" / f"{name}.wav", dtype="int16")
        assert rate == RATE
        for at in range(0, len(audio), FRAME):
            self._words.append(np.pad(audio[at : at + FRAME], (0, max(0, at + FRAME - len(audio)))))

    async def recv(self):
        await asyncio.sleep(max(0.0, self._began + self._count / 50 - time.monotonic()))
        samples = self._words.popleft() if self._words else np.zeros(FRAME, np.int16)
        frame = AudioFrame.from_ndarray(samples.reshape(1, -1), format="s16", layout="mono")
        frame.sample_rate = RATE
        frame.pts = self._count * FRAME
        frame.time_base = fractions.Fraction(1, RATE)
        self._count += 1
        return frame


@pytest.fixture
async def http(server):
    """A client of a gateway in front of the real server."""
    settings = Settings(
        listen=ListenSettings(port=0), servers=ServerSettings(addresses=[server.endpoints.grpc])
    )
    async with running(settings) as gateway, httpx.AsyncClient(base_url=gateway.url) as client:
        yield client


async def test_a_conversation(http):
    mouth = Mouth()
    async with calling(http, SESSION, mouth) as client:
        mouth.say("02-weather")
        asked = (await client.receive("response.done"))["response"]
        call = asked["output"][0]
        assert (call["name"], json.loads(call["arguments"])) == ("get_weather", {"city": "Paris"})
        since = len(client.events)
        output = json.dumps({"temperature": 8, "sky": "foggy"})
        item = {"type": "function_call_output", "call_id": call["call_id"], "output": output}
        client.send("conversation.item.create", item=item)
        client.send("response.create")
        response = (await client.receive("response.done", since))["response"]
        assert "8" in response["output"][0]["content"][0]["transcript"]
        assert response["usage"]["output_tokens"] > 0
        await client.receive("output_audio_buffer.stopped", since)
        assert sum(level > LOUD for level in client.levels) > 40

        since = len(client.events)
        mouth.say("06-story")
        await client.receive("output_audio_buffer.started", since)
        await asyncio.sleep(2.0)
        mouth.say("07-stop")
        response = (await client.receive("response.done", since))["response"]
        assert response["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
        cut = await client.receive("conversation.item.truncated", since)
        assert 500 < cut["audio_end_ms"] < 4_000
        await client.receive("output_audio_buffer.cleared", since)
        assert "error" not in client.kinds()
