"""The utterance that is being spoken, as far as a streaming recogniser has heard it."""

from __future__ import annotations

import copy

import numpy as np
from numpy.typing import NDArray

from parley.asr.decoding.boosting import PhraseAutomaton
from parley.asr.decoding.transducer import Tokens
from parley.asr.rails.segmentation import PER_MS
from parley.errors import ParleyError


class StreamingUtterance:
    """Where recognition stands. The numbers are here; arrays are in the slot.

    Its memory is bounded by the longest utterance: its tokens, and its audio if that is kept.
    """

    def __init__(
        self,
        number: int,
        start: int,
        *,
        chunk: int,
        boosting: PhraseAutomaton | None = None,
        keep_audio: bool = False,
    ) -> None:
        """Begin.

        Args:
            number: counts the stream's utterances from 1.
            start: sample of the stream at which it begins.
            chunk: feature frames that the encoder takes at once.
            boosting: phrases that are expected; None: no phrase is.
            keep_audio: whether another model may have to hear it again.
        """
        self.number = number
        self.start_ms = start // PER_MS
        self.chunk = chunk
        self.boosting = boosting or PhraseAutomaton.nothing()
        self.slot: int | None = None
        """Holds the arrays; None: there is none, and nothing is recognised."""
        self.written = 0
        """Samples so far."""
        self.ended = False
        """Whether no more audio comes."""
        self.frame = 0
        """Feature frames that the encoder has had."""
        self.failure: ParleyError | None = None
        """Why it is not recognised any further."""
        self.replaced = False
        """Whether that has been told."""
        self.reported = ""
        """The partial text that was told last."""
        self._news = False
        self._encoded = 0
        self._tokens: list[Tokens] = []
        self._keep_audio = keep_audio
        self._audio: list[NDArray[np.int16]] = []

    def fork(self) -> StreamingUtterance:
        """Return an independent copy."""
        twin = copy.copy(self)
        twin._tokens = list(self._tokens)  # noqa: SLF001 - same class
        twin._audio = list(self._audio)  # noqa: SLF001
        return twin

    def hear(self, samples: NDArray[np.int16]) -> None:
        """Add audio: i16 ``[n]``."""
        self.written += len(samples)
        if self._keep_audio:
            self._audio.append(samples.copy())

    def advance(self, tokens: Tokens, encoded: int) -> None:
        """A chunk has been recognised.

        Args:
            tokens: what it brought; frames within the chunk.
            encoded: the chunk's length in encoder frames.
        """
        if len(tokens.ids):
            frames = tokens.frames + np.int32(self._encoded)
            self._news = True
            self._tokens.append(Tokens(tokens.ids, frames, tokens.durations, tokens.confidences))
        self._encoded += encoded
        self.frame += self.chunk

    def take_news(self) -> bool:
        """Whether tokens have come since this was asked last."""
        news, self._news = self._news, False
        return news

    def audio(self) -> NDArray[np.int16]:
        """All of it: i16 ``[n]``, if it was kept."""
        return np.concatenate([np.zeros(0, np.int16), *self._audio])

    def tokens(self) -> Tokens:
        """All tokens so far; frames count from the beginning."""
        if len(self._tokens) != 1:
            self._tokens = [
                Tokens(
                    np.concatenate([np.zeros(0, np.int32), *(piece.ids for piece in self._tokens)]),
                    np.concatenate([np.zeros(0, np.int32), *(piece.frames for piece in self._tokens)]),
                    np.concatenate([np.zeros(0, np.int32), *(piece.durations for piece in self._tokens)]),
                    np.concatenate([np.zeros(0, np.float32), *(piece.confidences for piece in self._tokens)]),
                )
            ]
        return self._tokens[0]
