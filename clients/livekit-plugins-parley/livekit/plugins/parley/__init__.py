"""Parley plugin for LiveKit Agents: speech to text, language model and text to speech of a Parley server.

::

    session = AgentSession(
        stt=parley.STT(server="127.0.0.1:8001"),
        llm=parley.LLM(server="127.0.0.1:8001"),
        tts=parley.TTS(server="127.0.0.1:8001"),
    )
"""

from livekit.agents import Plugin

from .llm import LLM, LLMStream
from .log import logger
from .speech_stream import SpeechStream
from .stt import STT
from .tts import TTS, ChunkedStream, SynthesizeStream
from .version import __version__

__all__ = [
    "LLM",
    "STT",
    "TTS",
    "ChunkedStream",
    "LLMStream",
    "SpeechStream",
    "SynthesizeStream",
    "__version__",
]


class ParleyPlugin(Plugin):
    """Makes the plugin known to LiveKit."""

    def __init__(self) -> None:
        super().__init__(__name__, __version__, __package__ or __name__, logger)


Plugin.register_plugin(ParleyPlugin())
