"""What an utterance needs of others."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from parley.tts.messages import SpeechChunk
from parley.tts.normalization.normalizer import SpokenText
from parley.tts.s3gen.client import VoiceTensors
from parley.tts.s3gen.messages import AudioChunk, OpenUtterance, PushTokens
from parley.tts.t3.messages import SpeechTokensEvent, SpeechTokensRequest
from parley.tts.t3.request import TokenVoice
from parley.tts.voices.voice import Voice

Send: TypeAlias = Callable[[SpeechChunk, NDArray[np.int16]], bool]
"""Takes a piece of an utterance's audio; False: no more is wanted."""


class TokenModel(Protocol):
    """The part of :class:`parley.tts.t3.client.SpeechTokenModel` that is used."""

    def generate(
        self, request: SpeechTokensRequest, voice: TokenVoice
    ) -> AsyncGenerator[tuple[SpeechTokensEvent, NDArray[np.int32]], None]:
        """Draw the tokens of a segment."""
        ...

    async def abort(self, request_id: str) -> None:
        """Draw no more."""
        ...


class AudioModel(Protocol):
    """The part of :class:`parley.tts.s3gen.client.AudioModel` that is used."""

    def utter(
        self, message: OpenUtterance, voice: VoiceTensors, tokens: NDArray[np.int32] | None = None
    ) -> AsyncGenerator[tuple[AudioChunk, NDArray[np.int16]], None]:
        """Make audio of tokens."""
        ...

    async def push(self, message: PushTokens, tokens: NDArray[np.int32]) -> None:
        """Add tokens."""
        ...

    async def stop(self, utterance_id: str) -> None:
        """Make no more."""
        ...


class VoiceCache(Protocol):
    """The part of :class:`parley.tts.voices.base.VoiceStore` that is used."""

    async def get(self, voice_id: str) -> Voice:
        """Read a voice."""
        ...


class Normalizer(Protocol):
    """Writes text out as it is said."""

    async def normalize(self, text: str, language: str) -> SpokenText:
        """The text to say; never fails."""
        ...


def token_voice(voice: Voice) -> TokenVoice:
    """What T3 has to know of a voice."""
    return TokenVoice(voice.speaker_embedding, voice.t3_prompt_tokens)


def audio_voice(voice: Voice) -> VoiceTensors:
    """What S3Gen has to know of it."""
    return {
        "SPEAKER": voice.speaker,
        "PROMPT_TOKENS": voice.prompt_tokens,
        "PROMPT_MEL": voice.prompt_mel,
    }
