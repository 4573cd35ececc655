"""The callers' voices: a synthesizer in a process of its own, with the places of the words.

espeak-ng is GPL-3.0-or-later, so this process never loads it; and what a network takes of the memory is given
back when all lines have been spoken.
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
from simulate.casts import Cast, Marks
from simulate.errors import ScenarioError

RATE = 16_000
_TIMEOUT_S = 1_800
"""A hundred sentences take a network some minutes."""


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
    """(index of its first character, first sample) of the words that the synthesizer tells of."""
    marks: Marks


def speak_all(lines: Sequence[Line], cast: Cast) -> dict[Line, Spoken]:
    """Speak all lines.

    Raises:
        ScenarioError: the synthesizer is not there, or has no such voice.
    """
    wanted = list(dict.fromkeys(lines))
    if not wanted:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "speech.npz"
        request = [
            (cast.respelled.get(line.text, line.text), cast.voices.get(line.voice, line.voice), line.rate)
            for line in wanted
        ]
        done = subprocess.run(
            # Its folder has modules of its own, which must not come before others.
            [sys.executable, "-P", str(cast.program), str(out)],
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
                line: _spoken(arrays[f"audio{number}"], arrays[f"words{number}"], rate, cast)
                for number, line in enumerate(wanted)
            }


def _spoken(audio: NDArray[np.int16], words: NDArray[np.int64], rate: int, cast: Cast) -> Spoken:
    places = tuple((int(position), int(at) * RATE // rate) for position, at in words)
    return Spoken(resample(audio, rate, RATE), places, cast.marks)
