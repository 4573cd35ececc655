"""Speaks texts: ``voice_process.py espeak|kokoro FILE``; a list of (text, voice, rate) as JSON on stdin.

A program of its own, started by :mod:`parley_testing.voices`. FILE gets ``rate``, and for each text
``audio<n>``, i16 ``[samples]``, and ``words<n>``, i64 ``[n, 2]``: index of a word's first character, and its
first sample.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley.errors import InvalidInputError, ParleyError
from parley.launcher.options import ROOT
from parley.runtime.onnx import Stop
from parley.runtime.parameters import Parameters
from parley.runtime.weights import resolve_weights
from parley.tts.english.pronouncer import PronouncedWord, load_front_end
from parley.tts.espeak_library import EspeakLibrary, WordEvent
from parley.tts.kokoro.network import SAMPLE_RATE, MadeClause, load_network
from parley.tts.kokoro.voices import GRAPH

Speak: TypeAlias = Callable[[str, str, float], tuple[NDArray[np.int16], Sequence[tuple[int, int]]]]
"""A text with a voice at a speed: its audio, and where words begin."""

_WORDS_PER_MINUTE = 175
_LOUDEST = 32_000
_LANGUAGE = "en"


def open_espeak() -> tuple[int, Speak]:
    """Load espeak-ng; its rate, and how it speaks."""
    library = EspeakLibrary()

    def speak(text: str, voice: str, rate: float) -> tuple[NDArray[np.int16], Sequence[tuple[int, int]]]:
        if not library.set_voice(voice):
            raise InvalidInputError(f"espeak-ng has no voice {voice!r}")
        library.set_rate(round(_WORDS_PER_MINUTE * rate))
        audio: list[NDArray[np.int16]] = [np.zeros(0, np.int16)]
        words: list[WordEvent] = []

        def add(samples: NDArray[np.int16], begun: list[WordEvent]) -> bool:
            audio.append(samples)
            words.extend(begun)
            return True

        library.speak(text, add)
        return np.concatenate(audio), [(word.position, word.at_sample) for word in words]

    return library.sample_rate, speak


def open_kokoro() -> tuple[int, Speak]:
    """Load Kokoro; its rate, and how it speaks."""
    parameters = Parameters("kokoro", {}, model_dir=ROOT / "model_repository" / "kokoro")
    folder = resolve_weights(parameters, "kokoro-82m", [GRAPH])
    network = load_network(folder, {_LANGUAGE: load_front_end(parameters)}, threads=os.cpu_count() or 1)

    def speak(text: str, voice: str, rate: float) -> tuple[NDArray[np.int16], Sequence[tuple[int, int]]]:
        network.check(voice, _LANGUAGE)
        words = network.pronounce(text, _LANGUAGE)
        sound = network.at_speed(rate).make(words, voice, Stop())
        loudest = np.abs(sound.audio).max(initial=1e-9)
        return np.asarray(sound.audio * (_LOUDEST / loudest), np.int16), _marks(words, sound)

    return SAMPLE_RATE, speak


def _marks(words: Sequence[PronouncedWord], sound: MadeClause) -> list[tuple[int, int]]:
    """Where each written word begins; one that is said as several words does with the first of them."""
    marks: dict[int, int] = {}
    for word, begin in zip(words, sound.begins, strict=True):
        marks.setdefault(word.start, begin)
    return list(marks.items())


def main() -> None:
    """Speak all texts."""
    engine, file = sys.argv[1:]
    rate, speak = {"espeak": open_espeak, "kokoro": open_kokoro}[engine]()
    arrays: dict[str, NDArray[np.generic]] = {"rate": np.array(rate)}
    lines = msgspec.json.decode(sys.stdin.buffer.read(), type=list[tuple[str, str, float]])
    for number, line in enumerate(lines):
        audio, words = speak(*line)
        arrays[f"audio{number}"] = audio
        arrays[f"words{number}"] = np.array(words, np.int64).reshape(-1, 2)
    np.savez(file, **arrays)


if __name__ == "__main__":
    try:
        main()
    except ParleyError as error:
        sys.exit(str(error))
