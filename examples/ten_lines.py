"""Speak a recording to the agent and write its answer: python examples/ten_lines.py question.wav."""

import asyncio
import sys

from parley_client import DEFAULT_SERVER, AgentAudio, ParleyError, TurnMetrics, connect, write_speech


async def ask(question: str, server: str = DEFAULT_SERVER) -> None:
    answer = []
    async with asyncio.timeout(60), connect(server) as call:
        await call.speak(question)
        async for event in call:
            if isinstance(event, AgentAudio):
                answer.append(event)
            elif isinstance(event, TurnMetrics) and answer and not event.interrupted:
                return write_speech("answer.wav", answer)
    sys.exit("error: the call ended before the answer was complete")


try:
    asyncio.run(ask(*sys.argv[1:]))
except (ParleyError, TimeoutError, TypeError) as error:
    sys.exit(f"error: {str(error) or 'no answer'}. It needs a recording and a server: make serve")
