"""What synthesizers say, as one stream of audio."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parley.audio.resample import Resampler
from parley.tts.messages import SpeechChunk
from parley_client.stages.script import Script
from parley_client.stages.streams import ModelStream, Requests


@dataclass(frozen=True)
class SpokenWord:
    """A word that begins to be heard."""

    text: str
    start_char: int
    end_char: int
    """Half-open span of characters in the whole text."""
    at_sample: int
    """Counted from the first sample of the speech."""


@dataclass(frozen=True)
class SpeechPiece:
    """The next audio of a speech."""

    samples: NDArray[np.int16]
    """Mono, shape [n]."""
    sample_rate: int
    """Hertz; the same in all pieces."""
    offset: int
    """Index of the first sample within the speech."""
    words: tuple[SpokenWord, ...] = ()
    """That begin in this piece."""


class Track:
    """Makes one stream of audio and words out of the requests that a text was spoken in.

    Args:
        script: the text.
        rate: hertz of the result; None: that of the synthesizer.
    """

    def __init__(self, script: Script, rate: int | None) -> None:
        self._script = script
        self._rate = rate
        self._resampler: Resampler | None = None
        self._received = 0
        self._given = 0
        self._request_began = 0

    def begin_request(self) -> None:
        """What follows was spoken for the next part of the text."""
        self._request_began = self._received

    def add(self, chunk: SpeechChunk, audio: NDArray[np.int16], first_char: int) -> SpeechPiece:
        """The next piece, of which the request's text begins at ``first_char``."""
        if self._resampler is None:
            self._rate = self._rate or chunk.sample_rate
            self._resampler = Resampler(chunk.sample_rate, self._rate)
        ratio = self._resampler.to_rate / self._resampler.from_rate
        words = tuple(
            SpokenWord(
                text=self._script.text[first_char + mark.start_char : first_char + mark.end_char],
                start_char=first_char + mark.start_char,
                end_char=first_char + mark.end_char,
                at_sample=int((self._request_began + mark.at_sample) * ratio),
            )
            for mark in chunk.words
        )
        self._received += len(audio)
        return self._piece(self._resampler.push(audio), words)

    def finish(self) -> SpeechPiece | None:
        """What is left of the audio."""
        rest = self._resampler.finish() if self._resampler else np.zeros(0, np.int16)
        return self._piece(rest, ()) if len(rest) else None

    def _piece(self, samples: NDArray[np.int16], words: tuple[SpokenWord, ...]) -> SpeechPiece:
        piece = SpeechPiece(samples, self._rate or 0, self._given, words)
        self._given += len(samples)
        return piece


class Speech(ModelStream[SpeechPiece]):
    """A text that is being spoken: iterate it for its audio, inside ``async with``.

    :meth:`add` and :meth:`finish` are for a text that was begun with
    :meth:`parley_client.stages.Synthesis.begin`; other tasks may call them, and :meth:`abort`.

    Args:
        script: the text.
        pieces: its audio.
        stop: tells the synthesizer that no more is wanted.
        requests: of the stage.
        what: name of the synthesizer in logs.
    """

    def __init__(
        self,
        script: Script,
        pieces: AsyncGenerator[SpeechPiece, None],
        stop: Callable[[], Awaitable[object]],
        requests: Requests,
        what: str,
    ) -> None:
        super().__init__(pieces, stop, requests, what)
        self._script = script

    @property
    def text(self) -> str:
        """All of the text so far."""
        return self._script.text

    def add(self, text: str) -> None:
        """Write on; never waits. What makes a clause or a sentence is spoken.

        Raises:
            CallEndedError: the text is finished.
            InvalidMessageError: it is too long; nothing was added.
        """
        self._script.add(text)

    def finish(self) -> None:
        """The text is complete: the rest is spoken, and then the audio ends."""
        self._script.finish()

    def stop(self) -> None:
        """Stop speaking without waiting for it."""
        super().stop()
        self._script.drop()
