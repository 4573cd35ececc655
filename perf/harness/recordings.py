"""Recordings with their texts, as a manifest lists them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from parley.launcher.options import ROOT
from parley_client.audio.files import read_speech
from parley_client.errors import AudioFileError

RATE = 16_000
SYNTHETIC = ROOT / "tests" / "data" / "asr_eval" / "manifest.json"
"""Synthetic voices, which the tiny models understand."""
_FETCHED = ROOT / "models" / "test-recordings"


class RecordingError(ValueError):
    """A manifest cannot be read, or one of its recordings is missing."""


@dataclass(frozen=True)
class Recording:
    """A recording, and what is said in it; empty where there is no speech."""

    name: str
    text: str
    samples: NDArray[np.int16]
    """16 kHz mono, ``[n]``."""


def load_recordings(manifest: Path, *, with_silent: bool = False) -> list[Recording]:
    """The recordings of a manifest that have words.

    Args:
        manifest: JSON, a list of ``file``, ``text`` and optionally ``part``, first and last millisecond.
            Files lie beside it, or in ``models/test-recordings``.
        with_silent: also those without words.

    Raises:
        RecordingError: the manifest or a recording cannot be read, there is none, or one is missing.
    """
    try:
        entries = json.loads(manifest.read_text())
        found = [_load(entry, manifest.parent) for entry in entries if entry["text"] or with_silent]
    except RecordingError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AudioFileError) as error:
        raise RecordingError(f"{manifest}: {error!r}") from error
    if not found:
        raise RecordingError(f"{manifest}: has no recording")
    return found


def _load(entry: dict[str, str], folder: Path) -> Recording:
    places = [place / entry["file"] for place in (folder, _FETCHED)]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise RecordingError(f"{entry['file']} is not there: `make fetch MODEL={_FETCHED.name}` brings it")
    samples = read_speech(path)
    if "part" in entry:
        begin, end = (int(ms) * RATE // 1000 for ms in entry["part"])
        samples = samples[begin:end]
    return Recording(entry["file"], entry["text"], samples)
