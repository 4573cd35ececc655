"""Kokoro as a :class:`parley.tts.clauses.network.ClauseNetwork`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parley.errors import InferenceError, ModelLoadingError, UnsupportedLanguageError, UnsupportedVoiceError
from parley.languages import primary_language
from parley.runtime.onnx import Stop, open_session
from parley.tts.clauses.network import FrontEnd, WholeSound
from parley.tts.clauses.splitting import ClauseLimits
from parley.tts.english.pronouncer import PronouncedWord
from parley.tts.kokoro.voices import GRAPH, KNOWN_VOICES, LANGUAGES, VOICES, gain_db, voice_for
from parley.tts.messages import SpeakRequest
from parley.tts.voice_routing import check_language

PAD = 0
"""Before and after every clause."""
LONGEST = 510
"""Symbols of one run, without the two pads."""

_SYMBOLS = (
    (1, ";:,.!?"),
    (9, '—…"()“” \u0303ʣʥʦʨᵝꭧAI'),
    (31, "O"),
    (33, "Q"),
    (35, "ST"),
    (39, "W"),
    (41, "Yᵊabcdef"),
    (50, "hijklmnopqrstuvwxyzɑɐɒæ"),
    (75, "βɔɕç"),
    (80, "ɖðʤə"),
    (85, "ɚɛɜ"),
    (90, "ɟ"),
    (92, "ɡ"),
    (99, "ɥ"),
    (101, "ɨɪʝ"),
    (110, "ɯɰŋɳɲɴø"),
    (118, "ɸθœ"),
    (123, "ɹ"),
    (125, "ɾɻ"),
    (128, "ʁɽʂʃʈʧ"),
    (135, "ʊʋ"),
    (138, "ʌɣɤ"),
    (142, "χʎ"),
    (147, "ʒʔ"),
    (156, "ˈˌː"),
    (162, "ʰ"),
    (164, "ʲ"),
    (169, "↓"),
    (171, "→↗↘"),
    (177, "ᵻ"),
)
IDS = {symbol: first + place for first, symbols in _SYMBOLS for place, symbol in enumerate(symbols)}
"""Ids of the checkpoint's tokenizer."""

SAMPLE_RATE = 24_000

_STYLE = 256
_DURATIONS = "/encoder/Clip_output_0"
"""Frames of each symbol, pads included."""
_FRAME = 600
"""Samples."""


@dataclass(frozen=True)
class MadeClause:
    """Audio, and where its words begin."""

    audio: NDArray[np.float32]
    """``[n]``, with silence at both ends."""
    begins: Sequence[int]
    """Sample at which each word begins."""
    ends: Sequence[int]
    """Sample at which each word ends, without the marks that follow it."""


class KokoroNetwork:
    """Speaks clauses.

    Args:
        session: of the graph, with the durations as its second output.
        styles: by voice, f32 ``[n, 256]``: a vector for each number of symbols.
        front_ends: pronounce texts, by primary language.
        speed: 1.2 is a fifth faster than the voice's own.
    """

    sample_rate = SAMPLE_RATE
    limits = ClauseLimits()

    def __init__(
        self,
        session: Any,
        styles: Mapping[str, NDArray[np.float32]],
        front_ends: Mapping[str, FrontEnd],
        *,
        speed: float = 1.0,
    ) -> None:
        self._session = session
        self._speed = np.full(1, speed, np.float32)
        self._styles = styles
        self._front_ends = front_ends

    def at_speed(self, speed: float) -> KokoroNetwork:
        """The same network, which speaks faster or slower."""
        return KokoroNetwork(self._session, self._styles, self._front_ends, speed=speed)

    def check(self, voice: str | None, language: str) -> None:
        """See :class:`parley.tts.clauses.network.ClauseNetwork`."""
        if voice is not None and voice not in self._styles:
            raise UnsupportedVoiceError(f"no voice {voice!r}; there are {', '.join(self._styles)}")
        check_language(KNOWN_VOICES, voice, language, LANGUAGES)
        if primary_language(language) not in self._front_ends:
            raise UnsupportedLanguageError(f"language {language!r} needs espeak-ng, which is not installed")

    def pronounce(self, text: str, language: str) -> Sequence[PronouncedWord]:
        """See :class:`parley.tts.clauses.network.ClauseNetwork`."""
        return self._front_ends[primary_language(language)].pronounce(text)

    def speak(self, words: Sequence[PronouncedWord], request: SpeakRequest, stop: Stop) -> WholeSound:
        """See :class:`parley.tts.clauses.network.ClauseNetwork`."""
        voice = voice_for(request.voice, request.language)
        made = self.make(words, voice, stop)
        return WholeSound(made.audio, made.begins, gain_db=gain_db(voice), rate_hz=self.sample_rate)

    def make(self, words: Sequence[PronouncedWord], voice: str, stop: Stop) -> MadeClause:
        """The network's own output for a clause.

        Raises:
            StoppedError: the request was stopped.
            InferenceError: the network failed.
        """
        symbols, spans = symbols_of(words)
        styles = self._styles[voice]
        feeds = {
            "input_ids": np.array([[PAD, *symbols, PAD]], np.int64),
            "style": styles[min(len(symbols), len(styles) - 1)][None],
            "speed": self._speed,
        }
        waveform, durations = stop.run(self._session, feeds)
        if not np.isfinite(durations).all():
            raise InferenceError("the network made durations that are not numbers")
        ends = np.cumsum(durations.reshape(-1).astype(np.int64)) * _FRAME
        # Symbol n comes after the pad, so it begins where entry n ends.
        begins, over = ([int(ends[place]) for place in places] for places in zip(*spans, strict=True))
        return MadeClause(waveform.reshape(-1), begins, over)


def symbols_of(words: Sequence[PronouncedWord]) -> tuple[list[int], list[tuple[int, int]]]:
    """The network's input for a clause, and the half-open span of each word's sounds in it.

    Raises:
        InferenceError: it is too long for one run.
    """
    symbols: list[int] = []
    spans: list[tuple[int, int]] = []
    for word in words:
        if symbols:
            symbols.append(IDS[" "])
        symbols += [IDS[mark] for mark in word.before if mark in IDS]
        first = len(symbols)
        symbols += [IDS[symbol] for symbol in word.phonemes if symbol in IDS]
        spans.append((first, len(symbols)))
        symbols += [IDS[mark] for mark in word.after if mark in IDS]
    if len(symbols) > LONGEST:
        raise InferenceError(f"a clause of {len(symbols)} symbols; at most {LONGEST} can be spoken at once")
    return symbols, spans


def load_network(folder: Path, front_ends: Mapping[str, FrontEnd], *, threads: int) -> KokoroNetwork:
    """Read the graph and the voices.

    Raises:
        ModelLoadingError: a file is missing or not usable.
    """
    session = open_session(folder / GRAPH, threads=threads, more_outputs=[_DURATIONS])
    styles = {voice.name: _read_style(folder / VOICES / f"{voice.name}.bin") for voice in KNOWN_VOICES}
    return KokoroNetwork(session, styles, front_ends)


def _read_style(path: Path) -> NDArray[np.float32]:
    try:
        values = np.fromfile(path, "<f4")
    except OSError as error:
        raise ModelLoadingError(f"the voice {path} cannot be read: {error}") from error
    if not len(values) or len(values) % _STYLE or not np.isfinite(values).all():
        raise ModelLoadingError(f"the voice {path} is no table of style vectors")
    return values.reshape(-1, _STYLE)
