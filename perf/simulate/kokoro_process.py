"""Speaks texts with Kokoro: a list of (text, voice, rate) as JSON in, audio and places of words out.

A program of its own, started by :mod:`simulate.voices`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley.errors import ParleyError
from parley.launcher.options import ROOT
from parley.runtime.onnx import Stop
from parley.runtime.parameters import Parameters
from parley.runtime.weights import resolve_weights
from parley.tts.english.pronouncer import PronouncedWord, load_front_end
from parley.tts.kokoro.network import SAMPLE_RATE, MadeClause, load_network
from parley.tts.kokoro.voices import GRAPH

_LOUDEST = 32_000
_LANGUAGE = "en"


def main() -> None:
    """Write ``rate``, and for each text ``audio<n>``, i16 ``[samples]``, and ``words<n>``, i64 ``[n, 2]``."""
    lines = msgspec.json.decode(sys.stdin.buffer.read(), type=list[tuple[str, str, float]])
    parameters = Parameters("kokoro", {}, model_dir=ROOT / "model_repository" / "kokoro")
    folder = resolve_weights(parameters, "kokoro-82m", [GRAPH])
    network = load_network(folder, {_LANGUAGE: load_front_end(parameters)}, threads=os.cpu_count() or 1)
    arrays: dict[str, NDArray[np.generic]] = {"rate": np.array(SAMPLE_RATE)}
    for number, (text, voice, rate) in enumerate(lines):
        network.check(voice, _LANGUAGE)
        words = network.pronounce(text, _LANGUAGE)
        sound = network.at_speed(rate).make(words, voice, Stop())
        loudest = np.abs(sound.audio).max(initial=1e-9)
        arrays[f"audio{number}"] = np.asarray(sound.audio * (_LOUDEST / loudest), np.int16)
        arrays[f"words{number}"] = _marks(words, sound)
    np.savez(sys.argv[1], **arrays)


def _marks(words: Sequence[PronouncedWord], sound: MadeClause) -> NDArray[np.int64]:
    """Where each written word begins; one that is said as several words does with the first of them."""
    marks: dict[int, int] = {}
    for word, begin in zip(words, sound.begins, strict=True):
        marks.setdefault(word.start, begin)
    return np.array(list(marks.items()), np.int64).reshape(-1, 2)


if __name__ == "__main__":
    try:
        main()
    except ParleyError as error:
        sys.exit(str(error))
