"""A telephone call through the gateway: speech in, an answer out, and silence when the caller interrupts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections import deque

import numpy as np
import pytest
import soundfile
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from parley.launcher.options import ROOT
from parley_gateway.apis.settings import TwilioSettings
from parley_gateway.audio.codecs import AudioFormat, Encoder, decode_ulaw
from parley_gateway.security.settings import SecuritySettings
from parley_gateway.servers import ServerSettings
from parley_gateway.serving import running
from parley_gateway.settings import Settings
from parley_gateway.settings_sections import ListenSettings

sys.path.append(str(ROOT / "tests/unit/gateway"))

from twilio_line import ACCOUNT, AUTH_TOKEN, PUBLIC_URL, TwilioLine, sign

FRAME = 160
"""Bytes of 20 ms."""
QUIET = b"\xff" * FRAME


class Caller:
    """Somebody on the telephone: an ear and a mouth that keep time, as Twilio does for them."""

    def __init__(self, line):
        self._line = line
        self._words = deque()
        self._clip = AudioFormat("ulaw", 8_000)
        self.finished_at = 0.0
        """When the last word was said."""
        self.silent_since = None
        """When the agent was last heard."""

    def say(self, name):
        audio, rate = soundfile.read(ROOT / "tests/data/conversation" / name, dtype="int16")
        coded = Encoder(self._clip, rate).encode(audio)
        self._words.extend(coded[at : at + FRAME].ljust(FRAME, b"\xff") for at in range(0, len(coded), FRAME))

    @contextlib.asynccontextmanager
    async def on_the_line(self):
        tasks = [asyncio.create_task(part) for part in (self._listen(), self._keep_time())]
        try:
            yield self
        finally:
            for task in tasks:
                task.cancel()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(result, Exception) and not isinstance(result, ConnectionClosed):
                    raise result

    async def _listen(self):
        while True:
            await self._line.receive(60)

    async def _keep_time(self):
        began = time.monotonic()
        for frame in range(1_000_000):
            await asyncio.sleep(max(0.0, began + frame * 0.02 - time.monotonic()))
            if self._words:
                self.finished_at = time.monotonic()
            await self._line.speak(self._words.popleft() if self._words else QUIET)
            before = len(self._line.heard)
            await self._line.play_ms(20)
            if len(self._line.heard) > before:
                self.silent_since = time.monotonic()

    @property
    def heard_s(self):
        return len(self._line.heard) / 8_000

    async def hears(self, seconds, timeout_s=20):
        """Wait until so much was heard in all."""
        async with asyncio.timeout(timeout_s):
            while self.heard_s < seconds:  # noqa: ASYNC110 - time passes in the other task
                await asyncio.sleep(0.02)

    async def hears_nothing_for(self, seconds, timeout_s=20):
        async with asyncio.timeout(timeout_s):
            while not self.silent_since or time.monotonic() - self.silent_since < seconds:  # noqa: ASYNC110
                await asyncio.sleep(0.02)


@pytest.fixture
async def line(server, tmp_path):
    (tmp_path / "token").write_text(AUTH_TOKEN)
    settings = Settings(
        listen=ListenSettings(port=0, public_url=PUBLIC_URL),
        servers=ServerSettings(addresses=(server.endpoints.grpc,)),
        security=SecuritySettings(insecure_allow_anonymous=True),
        twilio=TwilioSettings(
            auth_token_file=str(tmp_path / "token"), account=ACCOUNT, greeting="", own_twiml=True
        ),
    )
    signature = {"X-Twilio-Signature": sign("wss://voice.example/v1/twilio/stream")}
    async with (
        running(settings) as gateway,
        connect(
            f"ws{gateway.url.removeprefix('http')}/v1/twilio/stream", additional_headers=signature
        ) as socket,
    ):
        line = TwilioLine(socket)
        await line.begin()
        yield line
        await gateway.gateway.calls.drain(10)
        assert gateway.gateway.calls.count == 0


async def test_a_telephone_call(line):
    async with Caller(line).on_the_line() as caller:
        caller.say("01-hello.wav")
        await caller.hears(0.8)
        answer = decode_ulaw(line.heard)
        assert np.abs(answer.astype(int)).max() > 2_000
        await caller.hears_nothing_for(1.5)

        heard = caller.heard_s
        caller.say("06-story.wav")
        await caller.hears(heard + 1.5, timeout_s=30)
        cleared = line.clears
        caller.say("07-stop.wav")
        await caller.hears_nothing_for(0.4)
        # The story is not at its end: the caller's voice has stopped it, within a moment.
        assert line.clears > cleared
        assert caller.silent_since - caller.finished_at < 1.0

        await line.hang_up()
        await asyncio.wait_for(line.closed(), 10)
    marks = [json.dumps(message) for message in line.messages if message["event"] == "mark"]
    assert len(marks) == len(set(marks))
