"""An agent of telephone calls, without a server."""

import asyncio

import numpy as np
from fake_agent import CONNECTED

from parley.protocol import Audio, Playback, decode_message

SAMPLES = np.round(8_000 * np.sin(2 * np.pi * 440 / 8_000 * np.arange(2_400))).astype(np.int16)
"""300 ms of 8 kHz."""


class TelephoneAgent:
    """Records what it receives, and speaks on request of a test."""

    def __init__(self):
        self.start = asyncio.get_running_loop().create_future()
        self.received = asyncio.Queue()
        self.audio = []
        self.enough = asyncio.Event()
        self.over = asyncio.Event()

    async def __call__(self, stream):
        self.stream = stream
        first = await stream.frames.get()
        self.start.set_result(decode_message(first.message))
        stream.say(CONNECTED)
        while (frame := await stream.frames.get()) is not None:
            self._on_frame(frame)
            if frame.end:
                stream.hang_up()
            stream.acknowledge(frame)
        stream.end()
        self.over.set()

    def _on_frame(self, frame):
        if frame.message:
            self.received.put_nowait(decode_message(frame.message))
        if len(frame.audio):
            self.audio.append(np.frombuffer(frame.audio, "<i2"))
            if sum(map(len, self.audio)) >= 3_200:
                self.enough.set()

    def say(self, samples=SAMPLES, offset_ms=0, response="r1", rate=8_000):
        self.stream.say(
            Audio(turn=1, response_id=response, offset_ms=offset_ms, sample_rate=rate, samples=len(samples)),
            samples,
        )

    async def next_message(self):
        return await asyncio.wait_for(self.received.get(), 10)

    async def playbacks(self, count):
        """The next positions of the playback that Twilio's marks report."""
        positions = []
        while len(positions) < count:
            if isinstance(message := await self.next_message(), Playback):
                positions.append(message.played_ms)
        return positions
