"""Clients of the single stages: recognisers, a language model, a synthesizer.

They talk gRPC to Triton, share one connection, and know nothing of conversations::

    async with open_server("127.0.0.1:8001") as server:
        async with Recognition(server) as stream: ...
        async with Generation(server) as chat: ...
        async with Synthesis(server) as voice: ...
        async with Transcription(server) as recordings: ...

Anything with a ``channel`` (``grpc.aio``) may stand for ``server``.
"""

from __future__ import annotations

from parley_client.stages.generation import Answer, Generation
from parley_client.stages.recognition import Recognition
from parley_client.stages.recognition_types import FinalizedEvent, RecognitionEvent, RecognitionLimits
from parley_client.stages.recordings import Transcription
from parley_client.stages.server import Server, StageServer, open_server
from parley_client.stages.speech import Speech, SpeechPiece, SpokenWord
from parley_client.stages.synthesis import Synthesis, VoiceInfo

__all__ = [
    "Answer",
    "FinalizedEvent",
    "Generation",
    "Recognition",
    "RecognitionEvent",
    "RecognitionLimits",
    "Server",
    "Speech",
    "SpeechPiece",
    "SpokenWord",
    "StageServer",
    "Synthesis",
    "Transcription",
    "VoiceInfo",
    "open_server",
]
