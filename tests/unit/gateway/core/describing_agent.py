"""An agent that describes itself, and others that its server defines."""

from __future__ import annotations

import json

from fake_agent import CONNECTED

from parley import protocol

RESTAURANT = protocol.AgentSummary(
    name="restaurant",
    title="Bella Vista",
    language="de",
    voice="man-1",
    colour="#0a7d5a",
    numbers=["+493012345678", "+4930999"],
)
CLINIC = protocol.AgentSummary(name="clinic", title="clinic")


def defining(*summaries, started=None):
    """A server with these agents, or those that a list has at the time; other sessions go to ``started``."""
    agents = summaries[0] if summaries and isinstance(summaries[0], list) else list(summaries)

    async def agent(stream):
        frame = await stream.frames.get()
        start = protocol.decode_start(frame.message)
        if start.describe:
            described = protocol.AgentDescription(
                recognizer="whisper",
                language_model=start.agent or "qwen3",
                synthesizers=["espeak"],
                languages=["en", "de"],
                voices=["man-1"],
                tools=["book"] if start.agent else [],
                examples=["a table for two"] if start.agent else ["hello"],
                default_prompt=not start.agent,
                agents=list(agents),
            )
            stream.say(protocol.Connected(session_id="fake", output_sample_rate=22_050, agent=described))
        else:
            if started is not None:
                started.append(json.loads(frame.message))
            stream.say(CONNECTED)
        while (frame := await stream.frames.get()) is not None:
            if frame.end:
                stream.hang_up()
            stream.acknowledge(frame)
        stream.end()

    return agent
