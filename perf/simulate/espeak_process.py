"""Speaks texts with espeak-ng: a list of (text, voice, rate) as JSON in, audio and places of words out.

A program of its own, started by :mod:`simulate.voices`.
"""

from __future__ import annotations

import sys

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley.errors import ParleyError
from parley.tts.espeak_library import EspeakLibrary, WordEvent

_WORDS_PER_MINUTE = 175


def main() -> str | None:
    """Write ``rate``, and for each text ``audio<n>``, i16 ``[samples]``, and ``words<n>``, i64 ``[n, 2]``."""
    library = EspeakLibrary()
    arrays: dict[str, NDArray[np.generic]] = {"rate": np.array(library.sample_rate)}
    lines = msgspec.json.decode(sys.stdin.buffer.read(), type=list[tuple[str, str, float]])
    for number, (text, voice, rate) in enumerate(lines):
        if not library.set_voice(voice):
            return f"espeak-ng has no voice {voice!r}"
        library.set_rate(round(_WORDS_PER_MINUTE * rate))
        audio: list[NDArray[np.int16]] = []
        words: list[WordEvent] = []

        def add(
            samples: NDArray[np.int16],
            begun: list[WordEvent],
            audio: list[NDArray[np.int16]] = audio,
            words: list[WordEvent] = words,
        ) -> bool:
            audio.append(samples)
            words += begun
            return True

        library.speak(text, add)
        arrays[f"audio{number}"] = np.concatenate(audio) if audio else np.zeros(0, np.int16)
        marks = [(word.position, word.at_sample) for word in words]
        arrays[f"words{number}"] = np.array(marks, np.int64).reshape(-1, 2)
    np.savez(sys.argv[1], **arrays)
    return None


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ParleyError as error:
        sys.exit(str(error))
