"""Who calls: the synthesizers that speak for callers, and their voices."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from parley.launcher.options import ROOT
from parley.runtime.weights import MODELS_DIR_VARIABLE

_HERE = Path(__file__).parent


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

    program: Path
    """Reads ``(text, voice, rate)`` as JSON, and writes what they sound like."""
    voices: Mapping[str, str]
    """Names for voices of the synthesizer; scenarios may also use its own."""
    marks: Marks
    respelled: Mapping[str, str] = field(default_factory=dict)
    """What it would spell out."""
    weights: tuple[str, ...] = ()
    """Folders of weights that the sound depends on. Empty: it takes no time, and no line is kept."""


ESPEAK = Cast(
    program=_HERE / "espeak_process.py",
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
    program=_HERE / "kokoro_process.py",
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
    return Path(named) if named else ROOT / "models"
