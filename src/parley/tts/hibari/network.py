"""Hibari as a :class:`parley.tts.clauses.network.ClauseNetwork`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parley.errors import InferenceError
from parley.runtime.onnx import Stop, open_session
from parley.tts.clauses.network import FrontEnd, WholeSound, random_of
from parley.tts.clauses.splitting import ClauseLimits
from parley.tts.english.pronouncer import PronouncedWord
from parley.tts.hibari.voices import GAIN_DB, GRAPH, KNOWN_VOICES, LANGUAGES
from parley.tts.hibari.waveform import HOP, SAMPLE_RATE, Spectrum, make_waveform
from parley.tts.kokoro.network import PAD, symbols_of
from parley.tts.messages import SpeakRequest
from parley.tts.voice_routing import check_voice

_DURATIONS = "/Clip_output_0"
"""Frames of Kokoro of each symbol, pads included, one of which is two of this network."""
_FRAME = 2 * HOP
_SPEED = np.ones(1, np.float32)


class HibariNetwork:
    """Speaks sentences.

    Args:
        session: of the graph, with the durations as its last output.
        front_end: pronounces texts.
    """

    sample_rate = SAMPLE_RATE
    limits = ClauseLimits(words=((12, 40),), phonemes=300, by_sentence=True)

    def __init__(self, session: Any, front_end: FrontEnd) -> None:
        self._session = session
        self._front_end = front_end

    def check(self, voice: str | None, language: str) -> None:
        """See :class:`parley.tts.clauses.network.ClauseNetwork`."""
        check_voice(voice, language, KNOWN_VOICES, LANGUAGES)

    def pronounce(self, text: str, language: str) -> Sequence[PronouncedWord]:  # noqa: ARG002 - it is English
        """See :class:`parley.tts.clauses.network.ClauseNetwork`."""
        return self._front_end.pronounce(text)

    def speak(self, words: Sequence[PronouncedWord], request: SpeakRequest, stop: Stop) -> WholeSound:
        """See :class:`parley.tts.clauses.network.ClauseNetwork`."""
        symbols, spans = symbols_of(words)
        feeds: dict[str, NDArray[Any]] = {
            "ids": np.array([[PAD, *symbols, PAD]], np.int64),
            "speed": _SPEED,
        }
        *outputs, durations = stop.run(self._session, feeds)
        parts = [output[0] for output in outputs]
        if not all(np.isfinite(part).all() for part in (*parts, durations)):
            raise InferenceError("the network made values that are not numbers")
        audio = make_waveform(Spectrum(*parts), random_of(words, request))
        # Symbol n comes after the pad, so it begins where entry n ends.
        ends = np.cumsum(durations.astype(np.int64)) * _FRAME
        begins = [int(ends[begin]) for begin, _ in spans]
        return WholeSound(audio, begins, gain_db=GAIN_DB, rate_hz=SAMPLE_RATE)


def load_network(folder: Path, front_end: FrontEnd, *, threads: int) -> HibariNetwork:
    """Read the graph.

    Raises:
        ModelLoadingError: it is missing or not usable.
    """
    session = open_session(folder / GRAPH, threads=threads, more_outputs=[_DURATIONS])
    return HibariNetwork(session, front_end)
