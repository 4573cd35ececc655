"""Spoken lines on disk, so that a network says each of them once."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from parley.launcher.options import ROOT
from simulate.casts import Cast, models_folder
from simulate.errors import ScenarioError
from simulate.voices import Line, Spoken, speak_all

FOLDER = ROOT / ".cache" / "simulate"
MOST = 2_000
"""Lines that are kept; then those that were used longest ago go."""
_BLOCK = 1 << 20


class KeptLines:
    """The lines of one cast.

    Args:
        cast: whose; other weights or another program make other lines.
        folder: where they are kept.
        most: how many.

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
        """All lines; those that are not there yet are spoken and kept.

        Raises:
            ScenarioError: the synthesizer cannot speak them.
        """
        kept = {line: found for line in dict.fromkeys(lines) if (found := self._read(line)) is not None}
        new = speak_all([line for line in lines if line not in kept], self._cast)
        if new:
            self._folder.mkdir(parents=True, exist_ok=True)
            for line, spoken in new.items():
                self._write(line, spoken)
            self._forget_oldest()
        return {**kept, **new}

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

    def _forget_oldest(self) -> None:
        files = sorted(self._folder.glob("*.npz"), key=lambda path: path.stat().st_mtime)
        for path in files[: max(0, len(files) - self._most)]:
            path.unlink(missing_ok=True)


def _stamp(cast: Cast) -> str:
    """A checksum of everything that the sound depends on, apart from text, voice and rate."""
    digest = hashlib.sha256(cast.program.read_bytes())
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
