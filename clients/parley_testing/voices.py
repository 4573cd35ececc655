"""The callers' voices: a synthesizer in a process of its own, with the places of the words.

espeak-ng is GPL-3.0-or-later, so this process never loads it; and what a network takes of the memory is given
back when all lines have been spoken.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley.runtime.weights import MODELS_DIR_VARIABLE
from parley_client.audio.files import resample
from parley_client.cli import CHECKOUT
from parley_testing.scenario import ScenarioError

_PROGRAM = Path(__file__).with_name("voice_process.py")

RATE = 16_000
_TINY = "tiny"
_TIMEOUT_S = 1_800
"""A hundred sentences take a network some minutes."""
FOLDER = CHECKOUT / ".cache" / "simulate"
MOST = 2_000
"""Lines in the cache; beyond that, those used longest ago are deleted."""
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Marks:
    """How well a synthesizer says where words begin."""

    early_ms: int
    """So much before the place to cut at a word is marked; negative: after it."""
    search_ms: int
    """So far from there the quietest place is looked for."""


@dataclass(frozen=True)
class Cast:
    """Who can call."""

    engine: str
    """Of ``voice_process.py``."""
    voices: Mapping[str, str]
    """Names for voices of the synthesizer; scenarios may also use its own."""
    marks: Marks
    respelled: Mapping[str, str] = field(default_factory=dict)
    """What it would spell out."""
    weights: tuple[str, ...] = ()
    """Folders of weights that the sound depends on. Empty: it is fast, and no line is cached."""


ESPEAK = Cast(
    engine="espeak",
    voices={
        "woman-1": "gmw/en-US+f3",
        "woman-2": "gmw/en+Annie",
        "woman-3": "gmw/en-US+f2",
        "woman-4": "gmw/en-US+linda",
        "man-1": "gmw/en-US+m7",
        "man-2": "gmw/en-US+Michael",
        "man-3": "gmw/en+rob",
        "man-4": "gmw/en-GB-scotland+m3",
    },
    marks=Marks(early_ms=40, search_ms=20),  # with these the recogniser understands the parts best
    respelled={"mhm": "umhum", "hm": "hum", "mm": "um"},
)
KOKORO = Cast(
    engine="kokoro",
    # None of them is a voice that the agent has by default.
    voices={
        "woman-1": "af_bella",
        "woman-2": "bf_emma",
        "woman-3": "af_sarah",
        "woman-4": "af_kore",
        "man-1": "am_michael",
        "man-2": "bm_george",
        "man-3": "am_fenrir",
        "man-4": "am_puck",
    },
    marks=Marks(early_ms=-40, search_ms=40),
    weights=("kokoro-82m", "misaki-en", "g2p-en"),
)


def models_folder() -> Path:
    """Where weights and recordings are."""
    named = os.environ.get(MODELS_DIR_VARIABLE)
    return Path(named) if named else CHECKOUT / "models"


def cast_of(profile: str) -> Cast:
    """Only the tiny models need callers who say what they have learned."""
    return ESPEAK if profile == _TINY else KOKORO


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
    """(index of its first character, first sample) of the words that the synthesizer reports."""
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
            [sys.executable, "-P", str(_PROGRAM), cast.engine, str(out)],
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


class LineCache:
    """The lines of one cast.

    Raises:
        ScenarioError: the weights are missing.
    """

    def __init__(self, cast: Cast, folder: Path = FOLDER, most: int = MOST) -> None:
        self._cast = cast
        self._folder = folder
        self._most = most
        self._stamp = _stamp(cast)

    def missing(self, lines: Sequence[Line]) -> list[Line]:
        """Those that have to be spoken, each once."""
        return [line for line in dict.fromkeys(lines) if not self._path(line).is_file()]

    def speak(self, lines: Sequence[Line]) -> dict[Line, Spoken]:
        """All lines; new ones are spoken and stored.

        Raises:
            ScenarioError: the synthesizer cannot speak them.
        """
        cached = {line: found for line in dict.fromkeys(lines) if (found := self._read(line)) is not None}
        new = speak_all([line for line in lines if line not in cached], self._cast)
        if new:
            self._folder.mkdir(parents=True, exist_ok=True)
            for line, spoken in new.items():
                self._write(line, spoken)
            self._delete_oldest()
        return {**cached, **new}

    def _path(self, line: Line) -> Path:
        said = self._cast.respelled.get(line.text, line.text)
        voice = self._cast.voices.get(line.voice, line.voice)
        key = hashlib.sha256(msgspec.json.encode([self._stamp, said, voice, line.rate])).hexdigest()
        return self._folder / f"{key}.npz"

    def _read(self, line: Line) -> Spoken | None:
        path = self._path(line)
        try:
            with path.open("rb") as file, np.load(file) as arrays:
                words = tuple((int(position), int(at)) for position, at in arrays["words"])
                spoken = Spoken(arrays["samples"], words, self._cast.marks)
            os.utime(path)
        except (OSError, ValueError, KeyError, zipfile.BadZipFile):  # none, or half of one
            return None
        return spoken

    def _write(self, line: Line, spoken: Spoken) -> None:
        path = self._path(line)
        part = path.with_suffix(f".{os.getpid()}")
        with part.open("wb") as file:
            np.savez(file, samples=spoken.samples, words=np.array(spoken.words, np.int64).reshape(-1, 2))
        part.replace(path)

    def _delete_oldest(self) -> None:
        files = sorted(self._folder.glob("*.npz"), key=lambda path: path.stat().st_mtime)
        for path in files[: max(0, len(files) - self._most)]:
            path.unlink(missing_ok=True)


def _stamp(cast: Cast) -> str:
    """A checksum of everything that the sound depends on, apart from text, voice and rate."""
    digest = hashlib.sha256(cast.engine.encode() + _PROGRAM.read_bytes())
    for name in cast.weights:
        folder = models_folder() / name
        # What begins with a dot is a note about the weights.
        files = sorted(path for path in folder.rglob("[!.]*") if path.is_file())
        if not files:
            raise ScenarioError(
                f"the callers have no voice: {folder} is missing; bring it with `make fetch MODEL={name}`"
            )
        for path in files:
            digest.update(path.name.encode())
            with path.open("rb") as file:
                while block := file.read(_BLOCK):
                    digest.update(block)
    return digest.hexdigest()
