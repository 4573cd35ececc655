"""The Protocols of engines: recogniser, chat model, synthesizer, turn model and embedder."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from parley.asr.messages import AsrOptions, AsrReply
from parley.embeddings.messages import EmbeddingSpace, TextKind
from parley.llm.messages import GenerateRequest, LlmEvent
from parley.tts.messages import SpeakRequest, SpeechChunk


class Recognizer(Protocol):
    """One stream of audio; its calls must not overlap."""

    @property
    def model(self) -> str:
        """Name of the model; of several, the one that :meth:`check` or :meth:`start` has chosen last."""
        ...

    async def languages(self) -> Sequence[str]:
        """Languages that are understood; not while the stream is open.

        Raises:
            ParleyError: no model answers.
        """
        ...

    async def check(self, options: AsrOptions) -> None:
        """Check that a stream could be opened with these options; :meth:`start` follows at once, if at all.

        Raises:
            InvalidInputError: :meth:`start` would refuse them.
        """
        ...

    async def start(self, options: AsrOptions) -> None:
        """Open the stream; of several models, at the next one where the chosen one fails."""
        ...

    async def push(self, audio: NDArray[np.int16]) -> AsrReply:
        """Process the next piece: 16 kHz mono, any length."""
        ...

    def begin_turn(self) -> None:
        """Later audio is of another turn: it is not decoded together with earlier utterances."""
        ...

    async def flush(self) -> AsrReply:
        """End the current utterance now; its final transcript may come with the reply to a later piece."""
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


@runtime_checkable
class NamesModel(Protocol):
    """A chat model of several, which may change between two answers."""

    @property
    def model(self) -> str:
        """Name of the one that the next request goes to; empty: there is only one."""
        ...


Continuation: TypeAlias = Literal["none", "message", "prefix", "continue_final_message"]
"""``none``: not at all. ``message``: where the last message is the assistant's. ``prefix``: if that also has
``prefix: true``, as with Mistral and DeepSeek. ``continue_final_message``: with vLLM's and SGLang's field of
this name."""


@dataclass(frozen=True)
class RemoteChat:
    """A chat model behind an HTTP server."""

    url: str = ""
    """Up to the version, such as ``https://api.example.com/v1``."""
    model: str = ""
    key: str = field(default="", repr=False)
    """Empty: none is sent."""
    continuation: Continuation = "none"
    """How the server goes on with a message that has begun."""


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

        None: voices come and go; ask :meth:`check_voice`.
        """
        ...

    def check_known(self, voice: str | None, language: str) -> bool:
        """Refuse a voice or a language of which it is known that it cannot be had.

        Returns:
            Whether the voice certainly exists; otherwise call :meth:`check_voice`.

        Raises:
            UnsupportedVoiceError: there is no such voice.
            UnsupportedLanguageError: the language is not spoken, or not by this voice.
        """
        ...

    async def check_voice(self, voice: str) -> None:
        """Return if there is this voice.

        Raises:
            UnsupportedVoiceError: there is not.
            ParleyError: the model did not answer.
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

    async def score(self, speech: NDArray[np.int16], *, traceparent: str = "") -> float:
        """The probability (0-1) that it is; raises a ``ParleyError`` on failure.

        ``speech``: i16 ``[n]``, 16 kHz mono, the turn so far with the silence after it. ``traceparent``: span
        of the caller (W3C Trace Context); empty: there is none.
        """
        ...


class SpeakerModel(Protocol):
    """Represents voices by vectors whose dot product is their likeness."""

    async def embed(self, speech: NDArray[np.int16]) -> NDArray[np.float32]:
        """The vector of one person's speech, f32 ``[d]`` of length 1; raises a ``ParleyError`` on failure.

        ``speech``: i16 ``[n]``, 16 kHz mono, at least half a second.
        """
        ...


class Embedder(Protocol):
    """Represents texts by vectors whose dot product is the similarity of the texts."""

    async def describe(self) -> EmbeddingSpace:
        """The space of all vectors that this embedder returns; raises a ``ParleyError`` on failure."""
        ...

    async def embed(self, texts: Sequence[str], *, kind: TextKind) -> NDArray[np.float32]:
        """The vectors of texts: f32 ``[len(texts), dimensions]``, each of length 1.

        Raises:
            InvalidInputError: a text cannot be represented, such as one without a token.
            ParleyError: the model failed, or has other weights than :meth:`describe` has stated.
        """
        ...
