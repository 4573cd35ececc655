"""A voice of Piper as a :class:`parley.tts.clauses.network.ClauseNetwork`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from parley.errors import UnsupportedLanguageError, UnsupportedVoiceError
from parley.tts.clauses.network import FrontEnd, Stop
from parley.tts.clauses.sound import Level
from parley.tts.clauses.splitting import ClauseLimits
from parley.tts.english.pronouncer import PronouncedWord
from parley.tts.messages import SpeakRequest
from parley.tts.piper.audio import StreamedSound
from parley.tts.piper.notation import Notation
from parley.tts.piper.parts import Style, VoiceParts
from parley.tts.piper.voices import DEFAULT, GAIN_DB, KNOWN_VOICES, LANGUAGES
from parley.tts.voice_routing import speaks

# The encoder's time and memory grow with the sentence: 300 phonemes are about 20 s.
_FADE_S = 0.005
_LIMITS = ClauseLimits(words=((12, 40),), phonemes=300, by_sentence=True)


class PiperNetwork:
    """Speaks sentences; see the package.

    Args:
        parts: of the voice.
        notation: of its symbols.
        style: how it speaks.
        sample_rate: of its audio (hertz).
        front_end: pronounces texts.
    """

    limits = _LIMITS

    def __init__(
        self, parts: VoiceParts, notation: Notation, style: Style, sample_rate: int, front_end: FrontEnd
    ) -> None:
        self._parts = parts
        self._notation = notation
        self._style = style
        self.sample_rate = sample_rate
        self._front_end = front_end
        self._level = Level(GAIN_DB, sample_rate)

    def check(self, voice: str | None, language: str) -> None:
        """See :class:`parley.tts.clauses.network.ClauseNetwork`."""
        if voice not in (None, DEFAULT):
            names = ", ".join(known.name for known in KNOWN_VOICES)
            raise UnsupportedVoiceError(f"no voice {voice!r}; there are {names}")
        if not speaks(LANGUAGES, language):
            raise UnsupportedLanguageError(f"no voice speaks {language!r}; only {', '.join(LANGUAGES)}")

    def pronounce(self, text: str) -> Sequence[PronouncedWord]:
        """See :class:`parley.tts.clauses.network.ClauseNetwork`."""
        return self._front_end.pronounce(text)

    def speak(self, words: Sequence[PronouncedWord], request: SpeakRequest, stop: Stop) -> StreamedSound:
        """See :class:`parley.tts.clauses.network.ClauseNetwork`."""
        symbols = self._notation.symbols(words)
        seed = None if request.seed is None else (request.seed, words[0].start)
        random = np.random.default_rng(seed)
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
