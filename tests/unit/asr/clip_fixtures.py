"""The shipped export and real recordings."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import soundfile
from local_models import LocalModels
from numpy.typing import NDArray

from parley.asr import checkpoint
from parley.asr.checkpoint import Checkpoint

ROOT = Path(__file__).resolve().parents[3]
EXPORT = ROOT / "models" / checkpoint.DEFAULT
CLIPS = ROOT / "tests/data/asr_eval"


@dataclass(frozen=True)
class Clip:
    name: str
    text: str
    audio: NDArray[np.int16]


@pytest.fixture(scope="session")
def export() -> Checkpoint:
    return checkpoint.load(EXPORT)


@pytest.fixture(scope="session")
def models(export: Checkpoint) -> LocalModels:
    return LocalModels.open(export)


@pytest.fixture(scope="session")
def clips() -> list[Clip]:
    entries = json.loads((CLIPS / "manifest.json").read_text())
    return [
        Clip(entry["file"], entry["text"], soundfile.read(CLIPS / entry["file"], dtype="int16")[0])
        for entry in entries
    ]


@pytest.fixture(scope="session")
def spoken(clips: list[Clip]) -> list[Clip]:
    return [clip for clip in clips if clip.text]
