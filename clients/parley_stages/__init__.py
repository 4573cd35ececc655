"""Clients of the single stages: recognisers, a language model, a synthesizer.

They call Triton over gRPC and share one connection; no conversation is involved::

    async with open_server("127.0.0.1:8001") as server:
        async with Recognition(server) as stream: ...
        async with Generation(server) as chat: ...
        async with Synthesis(server) as voice: ...
        async with Transcriber(server) as recordings: ...

Anything with a ``channel`` (``grpc.aio``) may stand for ``server``.
"""

from __future__ import annotations

from parley_stages.generation import Answer, Generation
from parley_stages.recognition import Recognition
from parley_stages.recognition_types import FinalizedEvent, RecognitionEvent, RecognitionLimits
from parley_stages.server import ServerConnection, StageServer, open_server
from parley_stages.speech import Speech, SpeechPiece, WordTiming
from parley_stages.synthesis import Synthesis, VoiceInfo
from parley_stages.transcription import Transcriber
from parley_stages.voices import Voices

__all__ = [
    "Answer",
    "FinalizedEvent",
    "Generation",
    "Recognition",
    "RecognitionEvent",
    "RecognitionLimits",
    "ServerConnection",
    "Speech",
    "SpeechPiece",
    "StageServer",
    "Synthesis",
    "Transcriber",
    "VoiceInfo",
    "Voices",
    "WordTiming",
    "open_server",
]
