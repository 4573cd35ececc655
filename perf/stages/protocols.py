"""What an endpoint has to do to be measured: one type for each stage.

An endpoint sends, receives and translates, and nothing else. Who speaks when, what the time is, how long is
waited and what counts as a failure is decided in one place for all of them, :mod:`stages.turns`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Pcm: TypeAlias = NDArray[np.int16]
"""Mono, shape [n]."""
RATE = 16_000
"""Of all speech that goes into an endpoint (hertz)."""


class Stage(StrEnum):
    """What is measured."""

    RECOGNIZER = "recognizer"
    LANGUAGE_MODEL = "language model"
    VOICE = "voice"
    CALL = "call"


class EndpointError(Exception):
    """An endpoint refused a request, or broke; its text is a short code by which failures are counted."""


@dataclass(frozen=True)
class Text:
    """What a recogniser has understood of an utterance."""

    text: str
    is_final: bool


class SpeechStream(Protocol):
    """One stream of speech to a recogniser; iterating it gives its texts."""

    async def send(self, chunk: Pcm) -> None:
        """Take the next audio, at :data:`RATE`."""
        ...

    async def end(self) -> None:
        """No more audio comes: the texts that are left follow, and then the iteration ends."""
        ...

    def __aiter__(self) -> AsyncIterator[Text]: ...


@dataclass(frozen=True)
class Recognizer:
    """Speech to text."""

    open: Callable[[], AbstractAsyncContextManager[SpeechStream]]
    """Opens a stream. Every method of it, too, may raise :class:`EndpointError`."""
    streams: bool = True
    """Whether audio is heard as it comes; otherwise all of it, after the end."""


@dataclass(frozen=True)
class Prompt:
    """What a language model is asked."""

    system: str
    user: str


@dataclass(frozen=True)
class Delta:
    """The next piece of an answer's text."""

    text: str


@dataclass(frozen=True)
class Usage:
    """How many tokens an answer had, by the endpoint's own count."""

    tokens: int


LanguageModel: TypeAlias = Callable[[Prompt], AsyncGenerator[Delta | Usage, None]]
"""Text to text, as it is written; raises :class:`EndpointError`."""


@dataclass(frozen=True)
class Sound:
    """The next piece of speech."""

    samples: Pcm
    rate: int
    """Hertz."""


Voice: TypeAlias = Callable[[str], AsyncGenerator[Sound, None]]
"""Text to speech, as it comes; raises :class:`EndpointError`."""


@dataclass(frozen=True)
class AnswerEnded:
    """All audio of an answer has come."""


class CallLine(Protocol):
    """An open call; iterating it gives what the agent says."""

    async def send(self, chunk: Pcm) -> None:
        """Take the next audio of the microphone, at :data:`RATE`."""
        ...

    def __aiter__(self) -> AsyncIterator[Sound | AnswerEnded]: ...


@dataclass(frozen=True)
class Agent:
    """Speech to speech."""

    open: Callable[[], AbstractAsyncContextManager[CallLine]]
    """Opens a call. Every method of it, too, may raise :class:`EndpointError`."""


@dataclass(frozen=True)
class Level:
    """A load."""

    concurrency: int
    turns: int
    """At least, of all sessions together."""


Endpoint: TypeAlias = Recognizer | LanguageModel | Voice | Agent
