"""Speak a recording to the agent and write its answer: python examples/ten_lines.py question.wav."""

import asyncio
import sys

import numpy as np
import soundfile

from parley.protocol import TurnMetrics
from parley_client import AgentAudio, connect
from parley_client.demo_tools import DEMO_TOOLS


async def main(question: str) -> None:
    speech, _ = soundfile.read(question, dtype="int16")  # 16 kHz, mono
    answer = []
    async with connect("127.0.0.1:8001", tools=DEMO_TOOLS) as call:
        await call.send_audio(np.concatenate([speech, np.zeros(16_000, np.int16)]))
        async for event in call:
            if isinstance(event, AgentAudio):
                answer.append(event.samples)
            elif isinstance(event, TurnMetrics):
                break
    soundfile.write("answer.wav", np.concatenate(answer), 22_050)


asyncio.run(main(sys.argv[1]))
