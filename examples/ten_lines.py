"""Speak a recording to the agent and write its answer: .venv/bin/python examples/ten_lines.py question.wav.

It needs a server: `make serve` in another terminal, or one named by a second argument or PARLEY_SERVER
(HOST:PORT).
"""

import asyncio
import os
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import soundfile

from parley.errors import ParleyError
from parley.protocol import TurnMetrics
from parley_client import DEFAULT_SERVER, AgentAudio, connect
from parley_client.audio.files import read_speech
from parley_client.cli.demo_tools import DEMO_TOOLS


async def ask(question: Path, server: str) -> list[np.ndarray]:
    speech = np.append(read_speech(question), np.zeros(16_000, np.int16))  # a second of silence ends it
    answer = []
    async with connect(server, tools=DEMO_TOOLS) as call:
        for start in range(0, len(speech), 1_600):
            await call.send_audio(speech[start : start + 1_600])
            await asyncio.sleep(0.1)  # as fast as it is spoken
        with suppress(TimeoutError):
            async with asyncio.timeout(20):
                async for event in call:
                    if isinstance(event, AgentAudio):
                        answer.append(event.samples)
                    elif isinstance(event, TurnMetrics) and not event.interrupted:
                        return answer
    if answer:
        sys.exit(
            f"error: the answer was cut off: {call.closed.reason if call.closed else 'it took too long'}"
        )
    return answer


if sys.argv[1:] in (["--help"], ["-h"]):
    print(__doc__)
    sys.exit()
if len(sys.argv) not in (2, 3):
    sys.exit(__doc__)
server = sys.argv[2] if len(sys.argv) == 3 else os.environ.get("PARLEY_SERVER", DEFAULT_SERVER)
try:
    pieces = asyncio.run(ask(Path(sys.argv[1]), server))
except ParleyError as error:
    sys.exit(f"error: {error}. It needs a server: make serve")
except KeyboardInterrupt:
    sys.exit(130)
if not pieces:
    sys.exit("no answer within 20 s: is there speech in the recording?")
soundfile.write("answer.wav", np.concatenate(pieces), 22_050)
print("The answer is in answer.wav.")
