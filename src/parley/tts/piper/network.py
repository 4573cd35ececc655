"""A voice of Piper as a :class:`parley.tts.clauses.network.ClauseNetwork`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain, repeat

import numpy as np
from numpy.typing import NDArray

from parley.errors import InvalidModelOutputError
from parley.runtime.onnx import Stop
from parley.tts.clauses.network import SILENT, FrontEnd, Level, random_of
from parley.tts.clauses.splitting import ClauseLimits
from parley.tts.english.pronouncer import PronouncedWord
from parley.tts.messages import SpeakRequest
from parley.tts.piper.notation import Notation
from parley.tts.piper.parts import DECODER_CONTEXT, FLOW_CONTEXT, Array, PiperStyle, Prior, VoiceParts
from parley.tts.piper.voices import GAIN_DB, KNOWN_VOICES, LANGUAGES
from parley.tts.voice_routing import check_voice

PIECES = (24, 32, 48)
"""Frames of 11.6 ms: the first piece is complete soonest, longer ones waste less on context."""
LATER_PIECES = 64
"""These take 40 ms to make."""

# Sounds reach a little beyond the frames of their symbols.
_BEFORE, _AFTER = 4, 3

# The encoder's time and memory grow with the sentence: 300 phonemes are about 20 s.
_FADE_S = 0.005
_LIMITS = ClauseLimits(words=((12, 40),), phonemes=300, by_sentence=True)


class StreamedSound:
    """A clause made piece by piece.

    Args:
        starts: index of the first symbol of each word, and of the first one after the last word.
        noise: how much the sound varies.
        random: source of the noise: the same generator gives the same audio.
        level: brings it to its loudness.
        fade: samples in which it rises from zero and falls to it.
    """

    def __init__(
        self,
        parts: VoiceParts,
        prior: Prior,
        starts: Sequence[int],
        *,
        noise: float,
        random: np.random.Generator,
        level: Level,
        fade: int,
    ) -> None:
        self._parts = parts
        self._level = level
        self._fade_length = fade
        mean, spread = (np.repeat(part, prior.frames, axis=1) for part in (prior.mean, prior.spread))
        self._drawn = mean + spread * random.standard_normal(mean.shape, np.float32) * np.float32(noise)
        self._latent = np.zeros_like(mean)
        self._frames = mean.shape[1]
        ends = np.concatenate([[0], np.cumsum(prior.frames)])
        first, last = int(ends[starts[0]]) - _BEFORE, int(ends[starts[-1]]) + _AFTER
        self._begin = self._made = max(0, first)
        self._end = min(max(last, self._begin + 1), self._frames)
        self._context = DECODER_CONTEXT + math.ceil(level.margin / parts.hop)
        self._flowed = max(0, self._begin - self._context)
        self._pieces = chain(PIECES, repeat(LATER_PIECES))
        self._loudest = 0.0
        self.begins: Sequence[int] = [
            max(0, int(ends[start]) - self._begin) * parts.hop for start in starts[:-1]
        ]

    @property
    def complete(self) -> bool:
        """Whether all of it has been made."""
        return self._made == self._end

    def make(self, stop: Stop) -> NDArray[np.int16]:
        """The next samples.

        Raises:
            StoppedError: the request was stopped.
            InferenceError: the network failed.
            InvalidModelOutputError: it is not audio, or the whole clause is silent.
        """
        begin, end = self._made, min(self._made + next(self._pieces), self._end)
        if self._end - end < PIECES[0]:  # not worth a piece of its own
            end = self._end
        first, last = max(0, begin - self._context), min(end + self._context, self._frames)
        self._flow_until(last, stop)
        audio = self._parts.decode(self._latent[:, first:last], stop)
        hop = self._parts.hop
        if len(audio) != (last - first) * hop or not np.isfinite(audio).all():
            raise InvalidModelOutputError("the voice made something that is not audio")
        self._fade(audio, first * hop)
        self._made = end
        inner = slice((begin - first) * hop, (end - first) * hop)
        self._loudest = max(self._loudest, float(np.abs(audio[inner]).max()))
        if self.complete and self._loudest <= SILENT:
            raise InvalidModelOutputError("the voice made silence of words")
        return self._level.apply(audio, first * hop, inner)

    def _flow_until(self, end: int, stop: Stop) -> None:
        if end <= self._flowed:
            return
        first, last = max(0, self._flowed - FLOW_CONTEXT), min(end + FLOW_CONTEXT, self._frames)
        latent = self._parts.flow(self._drawn[:, first:last], stop)
        self._latent[:, self._flowed : end] = latent[:, self._flowed - first : end - first]
        self._flowed = end

    def _fade(self, audio: Array, at: int) -> None:
        """Fade both ends of the clause; ``at``: sample at which ``audio`` begins."""
        hop = self._parts.hop
        index = np.arange(at, at + len(audio))
        since, until = index - self._begin * hop, self._end * hop - 1 - index
        audio *= np.clip(np.minimum(since, until) / self._fade_length, 0.0, 1.0).astype(np.float32)


class PiperNetwork:
    """Speaks sentences; see the package."""

    limits = _LIMITS

    def __init__(
        self, parts: VoiceParts, notation: Notation, style: PiperStyle, sample_rate: int, front_end: FrontEnd
    ) -> None:
        self._parts = parts
        self._notation = notation
        self._style = style
        self.sample_rate = sample_rate
        self._front_end = front_end
        self._level = Level(GAIN_DB, sample_rate)

    def check(self, voice: str | None, language: str) -> None:
        """See :class:`parley.tts.clauses.network.ClauseNetwork`."""
        check_voice(voice, language, KNOWN_VOICES, LANGUAGES)

    def pronounce(self, text: str, language: str) -> Sequence[PronouncedWord]:  # noqa: ARG002 - it is English
        """See :class:`parley.tts.clauses.network.ClauseNetwork`."""
        return self._front_end.pronounce(text)

    def speak(self, words: Sequence[PronouncedWord], request: SpeakRequest, stop: Stop) -> StreamedSound:
        """See :class:`parley.tts.clauses.network.ClauseNetwork`."""
        symbols = self._notation.symbols(words)
        random = random_of(words, request)
        prior = self._parts.encode(symbols.ids, self._style, random, stop)
        return StreamedSound(
            self._parts,
            prior,
            symbols.starts,
            noise=self._style.noise,
            random=random,
            level=self._level,
            fade=int(_FADE_S * self.sample_rate),
        )
