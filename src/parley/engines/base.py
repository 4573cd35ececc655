"""What the agent expects of a recogniser, a chat model and a synthesizer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from parley.asr.messages import AsrOptions, AsrReply
from parley.llm.messages import GenerateRequest, LlmEvent
from parley.tts.messages import SpeakRequest, SpeechChunk


class Recognizer(Protocol):
    """One stream of audio; its calls must not overlap."""

    async def check(self, options: AsrOptions) -> None:
        """Return if a stream could be opened with these options; nothing of it remains.

        Raises:
            InvalidInputError: of the kind that says what :meth:`start` would refuse.
        """
        ...

    async def start(self, options: AsrOptions) -> None:
        """Open the stream."""
        ...

    async def push(self, audio: NDArray[np.int16]) -> AsrReply:
        """Hear the next piece: 16 kHz mono, any length."""
        ...

    def turn_over(self) -> None:
        """What is heard from now on is of another turn: it is not read together with what was said before."""
        ...

    async def flush(self) -> AsrReply:
        """End the current utterance now; its final text may come with the answer to a later piece."""
        ...

    async def close(self) -> None:
        """End the stream; safe to call twice and after a failure."""
        ...


class ChatModel(Protocol):
    """Writes the assistant's next message."""

    def generate(self, request: GenerateRequest) -> AsyncGenerator[LlmEvent, None]:
        """Stream the answer; ends after ``Completed`` or raises a ``ParleyError``."""
        ...

    async def abort(self, request_id: str) -> None:
        """Stop ``generate`` of this id within one step of the engine."""
        ...


@dataclass(frozen=True)
class RemoteChat:
    """A chat model behind somebody's HTTP server."""

    url: str = ""
    """Up to the version, such as ``https://api.example.com/v1``."""
    model: str = ""
    key: str = field(default="", repr=False)
    """Empty: none is sent."""


@runtime_checkable
class Closable(Protocol):
    """An engine that holds something open."""

    async def close(self) -> None:
        """Let go of it."""
        ...


class Synthesizer(Protocol):
    """Speaks segments of text."""

    languages: Sequence[str]

    @property
    def voices(self) -> Sequence[str] | None:
        """Names that ``SpeakRequest.voice`` may have; the first is the default.

        None: voices come and go, and only :meth:`check_voice` and ``speak`` tell which are there.
        """
        ...

    def check_known(self, voice: str | None, language: str) -> bool:
        """Refuse a voice or a language of which it is known that it cannot be had.

        Returns:
            Whether it can be had for certain; if not, :meth:`check_voice` tells.

        Raises:
            UnsupportedVoiceError: there is no such voice.
            UnsupportedLanguageError: the language is not spoken, or not by this voice.
        """
        ...

    async def check_voice(self, voice: str) -> None:
        """Return if there is this voice.

        Raises:
            UnsupportedVoiceError: there is not.
            ParleyError: it cannot be told.
        """
        ...

    def speak(self, request: SpeakRequest) -> AsyncGenerator[tuple[SpeechChunk, NDArray[np.int16]], None]:
        """Stream the segment's audio (mono); raises a ``ParleyError`` on failure."""
        ...

    async def abort(self, request_id: str) -> None:
        """Stop ``speak`` of this id at once."""
        ...


class TurnModel(Protocol):
    """Hears whether a pause is the end of a turn."""

    async def score(self, speech: NDArray[np.int16]) -> float:
        """The probability (0-1) that it is; raises a ``ParleyError`` on failure.

        ``speech``: i16 ``[n]``, 16 kHz mono, the turn so far with the silence after it.
        """
        ...
