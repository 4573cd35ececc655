"""A voice agent on Parley for a LiveKit room.

    pip install . ./clients/parley-client ./clients/livekit-plugins-parley     # in a checkout
    python -m livekit.agents start agent.py     # with LIVEKIT_URL, LIVEKIT_API_KEY and LIVEKIT_API_SECRET

``PARLEY_SERVER`` names the server (default: 127.0.0.1:8001).
"""

import json
import os

from livekit.agents import Agent, AgentServer, AgentSession, JobContext, function_tool
from livekit.plugins import parley

SERVER = os.environ.get("PARLEY_SERVER", "127.0.0.1:8001")
PROMPT = "You are Parley, a friendly voice assistant. Keep answers short."


class Assistant(Agent):
    """Knows a made-up weather."""

    def __init__(self) -> None:
        super().__init__(instructions=PROMPT)

    @function_tool
    async def get_weather(self, city: str, day: str | None = None) -> str:  # noqa: ARG002
        """Get the weather in a city.

        Args:
            city: The name of the city.
            day: The day, if it is not now.
        """
        return json.dumps({"temperature": 8, "sky": "foggy"})


def make_session() -> AgentSession:
    """A session whose models are a Parley server's; LiveKit's own voice activity detection ends turns."""
    return AgentSession(
        stt=parley.STT(server=SERVER),
        llm=parley.LLM(server=SERVER),
        tts=parley.TTS(server=SERVER),
        turn_handling={"turn_detection": "vad", "interruption": {"mode": "vad"}},
        use_tts_aligned_transcript=True,
    )


server = AgentServer()


@server.rtc_session()
async def entrypoint(ctx: JobContext) -> None:
    session = make_session()
    await session.start(Assistant(), room=ctx.room)
    await session.say("Hello! How can I help you?")
