"""Speak a recording to the agent and write its answer: python examples/ten_lines.py question.wav."""

import asyncio
import sys
from pathlib import Path

import numpy as np
import soundfile

from parley.protocol import TurnMetrics
from parley_client import AgentAudio, connect
from parley_client.audio.files import read_speech
from parley_client.demo_tools import DEMO_TOOLS


async def main(question: Path) -> None:
    speech = np.append(read_speech(question), np.zeros(16_000, np.int16))  # a second of silence ends it
    answer = [np.zeros(0, np.int16)]
    async with connect("127.0.0.1:8001", tools=DEMO_TOOLS) as call:
        for start in range(0, len(speech), 1_600):
            await call.send_audio(speech[start : start + 1_600])
            await asyncio.sleep(0.1)  # as fast as it is spoken
        async for event in call:
            if isinstance(event, AgentAudio):
                answer.append(event.samples)
            elif isinstance(event, TurnMetrics):
                break
    soundfile.write("answer.wav", np.concatenate(answer), 22_050)


asyncio.run(main(Path(sys.argv[1])))
