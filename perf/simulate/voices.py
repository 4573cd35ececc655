"""The callers' voices: espeak-ng in a process of its own, with the places of the words.

espeak-ng is GPL-3.0-or-later, so this process never loads it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley_client.audio.files import resample
from simulate.errors import ScenarioError

RATE = 16_000
_PROGRAM = Path(__file__).with_name("espeak_process.py")
_TIMEOUT_S = 120

VOICES = {
    "woman-1": "gmw/en-US+f3",
    "woman-2": "gmw/en+Annie",
    "woman-3": "gmw/en-US+f2",
    "woman-4": "gmw/en-US+linda",
    "man-1": "gmw/en-US+m7",
    "man-2": "gmw/en-US+Michael",
    "man-3": "gmw/en+rob",
    "man-4": "gmw/en-GB-scotland+m3",
}
"""Names for voices of espeak-ng; scenarios may also name a file and a variant of espeak-ng itself."""

_RESPELLED = {"mhm": "umhum", "hm": "hum", "mm": "um"}
"""espeak-ng spells these out."""


@dataclass(frozen=True)
class Line:
    """Something to be spoken."""

    text: str
    voice: str
    rate: float = 1.0


@dataclass(frozen=True)
class Spoken:
    """A line as it sounds."""

    samples: NDArray[np.int16]
    """16 kHz mono, shape ``[n]``."""
    words: tuple[tuple[int, int], ...]
    """(index of its first character, first sample) of the words that espeak-ng tells of."""


def speak_all(lines: Sequence[Line]) -> dict[Line, Spoken]:
    """Speak all lines.

    Raises:
        ScenarioError: espeak-ng is not there, or has no such voice.
    """
    wanted = list(dict.fromkeys(lines))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "speech.npz"
        request = [
            (_RESPELLED.get(line.text, line.text), VOICES.get(line.voice, line.voice), line.rate)
            for line in wanted
        ]
        done = subprocess.run(
            [sys.executable, str(_PROGRAM), str(out)],
            input=msgspec.json.encode(request),
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            raise ScenarioError(f"the callers have no voice: {done.stderr.decode(errors='replace').strip()}")
        with np.load(out) as arrays:
            rate = int(arrays["rate"])
            return {
                line: _spoken(arrays[f"audio{number}"], arrays[f"words{number}"], rate)
                for number, line in enumerate(wanted)
            }


def _spoken(audio: NDArray[np.int16], words: NDArray[np.int64], rate: int) -> Spoken:
    marks = tuple((int(position), int(at) * RATE // rate) for position, at in words)
    return Spoken(resample(audio, rate, RATE), marks)
