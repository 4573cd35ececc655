"""Speech from several free synthesizers: the voices that the tiny recogniser learns from and is tested on.

Needs the programs ``espeak-ng``, ``flite`` and ``festival`` (with ``festvox-us-slt-hts`` and
``festvox-kdlpc16k``).  They are deterministic, so a clip is fixed by its text, voice and manner.
"""

from __future__ import annotations

import random
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.signal import resample_poly

SAMPLE_RATE = 16_000

Samples = npt.NDArray[np.int16]
"""Mono PCM at 16 kHz, shape ``[samples]``."""

_MARGIN = SAMPLE_RATE // 100
_SPEECH_LEVEL = 0.01


@dataclass(frozen=True)
class Voice:
    """One voice of one synthesizer."""

    engine: Literal["espeak", "flite", "festival"]
    name: str

    def __str__(self) -> str:
        return f"{self.engine}:{self.name}"


@dataclass(frozen=True)
class Manner:
    """How a voice speaks; 1.0 is its default."""

    rate: float = 1.0
    """Speed of speech; 1.2 is a fifth faster."""
    pitch: float = 1.0
    """Fundamental frequency, before ``tract`` scales it too."""
    tract: float = 1.0
    """Scale of all frequencies, formants included, at an unchanged rate: above 1 is a smaller speaker."""


AGENT_VOICE = Voice("espeak", "en-us")
"""The voice that the tiny agent itself speaks with."""

FLITE_PITCH = {"slt": 170.0, "rms": 95.0, "awb": 120.0, "kal16": 105.0}
"""Mean fundamental frequency of flite's voices, in hertz."""

_ACCENTS = ("en-us", "en-us", "en-us", "en-gb", "en-gb-x-rp", "en-us-nyc", "en-gb-scotland")
_VARIANTS = (
    "m1 m2 m3 m4 m5 m6 m8 f1 f2 f4 f5 Alex Alicia Andrea Andy Denis Gene Hugo Jacky Lee Marco Mike "
    "adam anika belinda benjamin boris caleb david ed edward john linda max paul robert shelby steph "
    "travis victor zac"
).split()
_NATURAL = (
    Voice("flite", "slt"),
    Voice("flite", "rms"),
    Voice("flite", "kal16"),
    Voice("festival", "ked_diphone"),
)

HELD_OUT_VOICES = (
    Voice("flite", "awb"),
    Voice("festival", "cmu_us_slt_arctic_hts"),
    Voice("espeak", "en-us+f3"),
    Voice("espeak", "en-us+m7"),
    Voice("espeak", "en-gb+Annie"),
    Voice("espeak", "en-us+Michael"),
    Voice("espeak", "en-gb+rob"),
)
"""Voices of the evaluation only.

The second is a parametric synthesizer built from the recordings of the speaker of ``flite:slt``,
which is a training voice; the other six have nothing in common with the training voices.
"""


def training_voice(rng: random.Random) -> Voice:
    """Draw a voice for training: 45 % espeak variants, 10 % the agent's voice, 45 % recorded speakers."""
    kind = rng.random()
    if kind < 0.10:
        return AGENT_VOICE
    if kind < 0.55:
        return Voice("espeak", f"{rng.choice(_ACCENTS)}+{rng.choice(_VARIANTS)}")
    return rng.choice(_NATURAL)


def varied_manner(rng: random.Random) -> Manner:
    """Draw a manner of speaking for training."""
    tract = rng.uniform(0.88, 1.16) if rng.random() < 0.6 else 1.0
    return Manner(rate=rng.uniform(0.8, 1.2), pitch=rng.uniform(0.8, 1.25), tract=tract)


def say(text: str, voice: Voice, manner: Manner = Manner()) -> Samples:
    """Speak ``text``, without the silence before and after it (10 ms remain on each side).

    Raises:
        RuntimeError: the synthesizer made no sound.
    """
    # A clip that is read at `tract` times its rate is that much shorter, so the voice must be slower.
    rate = manner.rate / manner.tract
    with tempfile.NamedTemporaryFile(suffix=".wav") as wav:
        if voice.engine == "espeak":
            _run(_espeak(text, voice.name, rate, manner.pitch, wav.name))
        elif voice.engine == "flite":
            _run(_flite(text, voice.name, rate, manner.pitch, wav.name))
        else:
            _run(_festival(text, voice.name, rate, wav.name))
        samples, sample_rate = read_wav(wav.read())
    speech = resampled(samples, sample_rate * manner.tract)
    first, last = edges(speech)
    if last <= first:
        raise RuntimeError(f"{voice} made no sound for {text!r}")
    return speech[first:last]


def _espeak(text: str, name: str, rate: float, pitch: float, path: str) -> list[str]:
    return [
        "espeak-ng",
        *("-v", name),
        *("-s", str(round(175 * rate))),
        *("-p", str(round(50 + 75 * (pitch - 1)))),
        *("-w", path, text),
    ]


def _flite(text: str, name: str, rate: float, pitch: float, path: str) -> list[str]:
    return [
        "flite",
        *("-voice", name),
        *("--setf", f"duration_stretch={1 / rate:.3f}"),
        *("--setf", f"int_f0_target_mean={FLITE_PITCH[name] * pitch:.1f}"),
        *("-t", text, "-o", path),
    ]


def _festival(text: str, name: str, rate: float, path: str) -> list[str]:
    return [
        "festival",
        "--batch",
        f"(voice_{name})",
        f"(Parameter.set 'Duration_Stretch {1 / rate:.3f})",
        f'(utt.save.wave (utt.synth (Utterance Text "{text}")) "{path}" \'riff)',
    ]


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True)


def read_wav(data: bytes) -> tuple[Samples, int]:
    """Samples and rate of a 16-bit mono WAV whose sizes may be wrong, as synthesizers leave them."""
    sample_rate = int.from_bytes(data[24:28], "little")
    start = data.index(b"data") + 8
    return np.frombuffer(data[start : len(data) - (len(data) - start) % 2], dtype="<i2"), sample_rate


def resampled(samples: Samples, sample_rate: float) -> Samples:
    """Bring to 16 kHz; the source rate is rounded to 100 Hz, which keeps the filter short."""
    source = round(sample_rate / 100)
    if source == SAMPLE_RATE // 100:
        return samples
    converted = resample_poly(samples.astype(np.float32), SAMPLE_RATE // 100, source)
    return np.clip(np.rint(converted), -32768, 32767).astype(np.int16)


def edges(samples: Samples) -> tuple[int, int]:
    """Where the speech begins and ends, with 10 ms of silence on each side; (0, 0): there is none."""
    level = np.abs(samples.astype(np.int32))
    voiced = np.flatnonzero(level > max(_SPEECH_LEVEL * level.max(initial=0), 20))
    if len(voiced) == 0:
        return 0, 0
    return max(0, int(voiced[0]) - _MARGIN), int(voiced[-1]) + _MARGIN
