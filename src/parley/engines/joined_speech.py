"""The speech of one text by several engines, one after the other."""

from __future__ import annotations

import re

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley.audio.resample import Resampler
from parley.tts.messages import SpeechChunk, TtsFallback, WordMark

_WORD = re.compile(r"\S+")
_CHARACTERS_PER_S = 15.0  # of ordinary speech, for engines that give no marks
_SILENT = 33  # highest sample, i16, of what cannot be heard: -60 dB


class JoinedSpeech:
    """Makes one stream of audio and marks out of those of all engines.

    Args:
        text: all of it.
        rate: hertz of the result; None: that of the first engine.
    """

    def __init__(self, text: str, rate: int | None) -> None:
        self._text = text
        self._rate = rate
        self._samples = 0
        self._begun = 0  # end of the last word that began
        # Of the engine that speaks:
        self._first_char = 0
        self._first_sample = 0
        self._resampler: Resampler | None = None
        self._seconds = 0.0
        self._marked = False
        self._peak = 0
        self._unheard: list[WordMark] = []  # of what cannot be heard so far

    @property
    def silent(self) -> bool:
        """Whether nothing that the engine has said can be heard."""
        return self._peak <= _SILENT

    @property
    def unspoken(self) -> str:
        """The text from the first word on that had not begun when the last engine ended."""
        return self._text[self._first_char :]

    def add(self, chunk: SpeechChunk, audio: NDArray[np.int16]) -> tuple[SpeechChunk, NDArray[np.int16]]:
        """What an engine said, as a part of the whole."""
        if self._rate is None:
            self._rate = chunk.sample_rate
        if self._resampler is None:
            self._resampler = Resampler(chunk.sample_rate, self._rate)
        self._seconds += len(audio) / chunk.sample_rate
        self._peak = max(self._peak, int(audio.max(initial=0)), -int(audio.min(initial=0)))
        self._marked = self._marked or bool(chunk.words)
        for mark in chunk.words:
            self._begun = max(self._begun, self._first_char + mark.end_char)
        resampled = self._resampler.push(audio) if len(audio) else audio
        marks = [*self._unheard, *(self._moved(mark, self._rate / chunk.sample_rate) for mark in chunk.words)]
        self._unheard = marks if self.silent else []
        spans = chunk.end_char > chunk.start_char
        joined = msgspec.structs.replace(
            chunk,
            sample_rate=self._rate,
            offset=self._samples,
            words=[] if self.silent else marks,
            start_char=self._first_char + chunk.start_char if spans else 0,
            end_char=self._first_char + chunk.end_char if spans else 0,
        )
        self._samples += len(resampled)
        return joined, resampled

    def finish_engine(self) -> tuple[SpeechChunk, NDArray[np.int16]] | None:
        """The engine says no more: what is left of its audio. The next one is to say :attr:`unspoken`."""
        rest = None
        if self._resampler is not None and self._rate is not None:
            audio = self._resampler.finish()
            if len(audio):
                rest = SpeechChunk(sample_rate=self._rate, offset=self._samples), audio
                self._samples += len(audio)
        if self.silent:
            self._begun = self._first_char  # whatever it has marked
        elif not self._marked:
            self._begun = max(self._begun, self._estimated())
        following = _WORD.search(self._text, self._begun)
        self._first_char = following.start() if following else len(self._text)
        self._first_sample = self._samples
        self._resampler, self._seconds, self._marked, self._peak = None, 0.0, False, 0
        self._unheard = []
        return rest

    def note(self, fallback: TtsFallback) -> SpeechChunk:
        """The chunk that tells of a replacement."""
        return SpeechChunk(sample_rate=self._rate or 0, offset=self._samples, fallback=fallback)

    def _estimated(self) -> int:
        """End of the last word that can have begun, for an engine without marks."""
        until = self._first_char + self._seconds * _CHARACTERS_PER_S
        begun = [word.end() for word in _WORD.finditer(self._text) if word.start() < until]
        return max(begun, default=0) if self._seconds else 0

    def _moved(self, mark: WordMark, ratio: float) -> WordMark:
        return WordMark(
            start_char=self._first_char + mark.start_char,
            end_char=self._first_char + mark.end_char,
            at_sample=self._first_sample + int(mark.at_sample * ratio),
        )
