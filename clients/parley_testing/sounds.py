"""Sounds that are not speech, made of noise and tones; each is always the same.

Babble is made of speech (:mod:`parley_testing.rendering`), everything else here. All have 16 kHz, and a
level of their own that the scenario changes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

RATE = 16_000
Wave = NDArray[np.float64]
"""Mono at 16 kHz, shape ``[n]``, full scale is 1."""


def _shaped(rng: np.random.Generator, seconds: float, bands: list[tuple[float, float, float]]) -> Wave:
    """Noise with energy in bands (centre and width in hertz, gain)."""
    count = round(seconds * RATE)
    spectrum = np.fft.rfft(rng.standard_normal(count))
    frequencies = np.fft.rfftfreq(count, 1 / RATE)
    shape = sum(gain * np.exp(-(((frequencies - centre) / width) ** 2)) for centre, width, gain in bands)
    return np.asarray(np.fft.irfft(spectrum * shape, count))


def _rise_and_fall(count: int, attack_s: float, decay_s: float) -> Wave:
    time = np.arange(count) / RATE
    return np.asarray((1 - np.exp(-time / attack_s)) * np.exp(-time / decay_s))


def _burst(
    rng: np.random.Generator,
    seconds: float,
    bands: list[tuple[float, float, float]],
    attack_s: float,
    decay_s: float,
) -> Wave:
    noise = _shaped(rng, seconds, bands)
    return noise * _rise_and_fall(len(noise), attack_s, decay_s)


def _row(parts: list[tuple[float, Wave]], seconds: float) -> Wave:
    """Sounds at their times (seconds)."""
    out = np.zeros(round(seconds * RATE))
    for at, part in parts:
        start = round(at * RATE)
        piece = part[: len(out) - start]
        out[start : start + len(piece)] += piece
    return out


_THROAT = [(450.0, 250.0, 1.0), (1_300.0, 400.0, 0.7), (2_600.0, 700.0, 0.35)]


def cough(rng: np.random.Generator) -> Wave:
    """Two bursts through an open throat."""
    first = _burst(rng, 0.30, _THROAT, 0.004, 0.07)
    second = _burst(rng, 0.26, _THROAT, 0.006, 0.06)
    return _row([(0.0, first), (0.34, 0.7 * second)], 0.62)


def throat(rng: np.random.Generator) -> Wave:
    """Clearing one's throat: rough, low, half voiced."""
    noise = _shaped(rng, 0.5, [(300.0, 200.0, 1.0), (900.0, 400.0, 0.5)])
    rattle = 0.5 + 0.5 * np.sign(np.sin(2 * np.pi * 38 * np.arange(len(noise)) / RATE))
    return np.asarray(noise * rattle * np.hanning(len(noise)))


def sneeze(rng: np.random.Generator) -> Wave:
    """A breath in, and all of it out at once."""
    draw = 0.15 * _shaped(rng, 0.35, [(1_500.0, 900.0, 1.0)])
    draw *= np.linspace(0, 1, len(draw))
    out = _burst(rng, 0.4, [(2_500.0, 1_500.0, 1.0), (600.0, 300.0, 0.8)], 0.003, 0.08)
    return _row([(0.0, draw), (0.4, out)], 0.85)


def breath(rng: np.random.Generator) -> Wave:
    """Breathing out into the microphone."""
    noise = _shaped(rng, 0.7, [(500.0, 400.0, 0.8), (1_800.0, 900.0, 0.5)])
    return 0.5 * noise * np.hanning(len(noise))


def laugh(rng: np.random.Generator) -> Wave:
    """A short laugh: four breathy pulses with a voice in them."""
    parts = []
    for number in range(4):
        noise = _burst(rng, 0.14, _THROAT, 0.01, 0.05)
        time = np.arange(len(noise)) / RATE
        voice = sum(np.sin(2 * np.pi * (210 - 12 * number) * k * time) / k for k in range(1, 9))
        parts.append((0.19 * number, noise + 0.03 * voice * _rise_and_fall(len(noise), 0.01, 0.04)))
    return _row(parts, 0.8)


def hmm(rng: np.random.Generator) -> Wave:
    """An "mhm" with closed lips: a voice whose overtones the nose swallows, in two steps."""
    parts = []
    for number, pitch in enumerate((150.0, 185.0)):
        time = np.arange(round((0.16 + 0.08 * number) * RATE)) / RATE
        phase = 2 * np.pi * pitch * (time + 0.15 * time**2)
        voice = sum(np.sin(k * phase) * np.exp(-(((k * pitch - 280) / 260) ** 2)) for k in range(1, 12))
        parts.append((0.2 * number, (voice + 0.02 * rng.standard_normal(len(time))) * np.hanning(len(time))))
    return _row(parts, 0.46)


def door(rng: np.random.Generator) -> Wave:
    """A door that falls shut."""
    thud = _burst(rng, 0.5, [(90.0, 70.0, 1.0), (250.0, 150.0, 0.4)], 0.002, 0.09)
    latch = _burst(rng, 0.06, [(2_200.0, 1_200.0, 1.0)], 0.001, 0.01)
    return _row([(0.0, thud), (0.05, 0.4 * latch)], 0.5)


def keyboard(rng: np.random.Generator) -> Wave:
    """Two seconds of typing."""
    times = np.cumsum(rng.uniform(0.07, 0.22, 12))
    parts = [
        (float(at), _burst(rng, 0.05, [(3_000.0, 1_800.0, 1.0), (400.0, 200.0, 0.4)], 0.001, 0.008))
        for at in times
        if at < 1.9
    ]
    return _row(parts, 2.0)


def click(rng: np.random.Generator) -> Wave:
    """Something hard is put down."""
    return _burst(rng, 0.12, [(1_800.0, 1_200.0, 1.0)], 0.001, 0.012)


def ring(rng: np.random.Generator) -> Wave:
    """A telephone in the room."""
    time = np.arange(round(1.2 * RATE)) / RATE
    tone = np.sin(2 * np.pi * 1_100 * time) + np.sin(2 * np.pi * 1_450 * time)
    trill = 0.5 + 0.5 * np.sign(np.sin(2 * np.pi * 13 * time))
    return np.asarray(0.3 * tone * trill + 0.001 * rng.standard_normal(len(time)))


def street(rng: np.random.Generator) -> Wave:
    """Traffic: noise that falls with frequency, slowly louder and softer."""
    count = 10 * RATE
    spectrum = np.fft.rfft(rng.standard_normal(count))
    frequencies = np.maximum(np.fft.rfftfreq(count, 1 / RATE), 30.0)
    noise = np.fft.irfft(spectrum / frequencies**0.8, count)
    swell = 1 + 0.4 * np.sin(2 * np.pi * np.arange(count) / count * 3)
    return np.asarray(noise * swell)


def hiss(rng: np.random.Generator) -> Wave:
    """White noise, as of a bad line."""
    return rng.standard_normal(10 * RATE)


def hum(rng: np.random.Generator) -> Wave:
    """A fan: mains hum, its overtones and some air."""
    count = 10 * RATE
    time = np.arange(count) / RATE
    tones = sum(np.sin(2 * np.pi * 50 * k * time + k) / k for k in (1, 2, 3, 4, 6))
    return np.asarray(tones + 6.0 * _shaped(rng, 10.0, [(400.0, 400.0, 1.0)]))


def music(rng: np.random.Generator) -> Wave:
    """Chords of plucked strings, two in a second."""
    parts = []
    for beat in range(20):
        root = 220.0 * 2 ** (rng.choice((0, 5, 7, 9, 12)) / 12)
        time = np.arange(round(0.6 * RATE)) / RATE
        chord = sum(
            np.sin(2 * np.pi * root * interval * k * time) / k**1.5
            for interval in (1.0, 1.26, 1.5)
            for k in range(1, 6)
        )
        parts.append((0.5 * beat, np.asarray(chord) * np.exp(-time / 0.25)))
    return _row(parts, 10.0)


_MAKERS: dict[str, Callable[[np.random.Generator], Wave]] = {
    maker.__name__: maker
    for maker in (
        cough, throat, sneeze, breath, laugh, hmm, door, keyboard, click, ring, street, hiss, hum, music
    )
}  # fmt: skip

BABBLE = "babble"
"""Several people talk at once; made by :mod:`parley_testing.rendering`."""
SOUNDS = frozenset((*_MAKERS, BABBLE))
LOOPS = frozenset(("street", "hiss", "hum", "music", "keyboard", BABBLE))
"""Those that may go on for as long as they are wanted."""


def make(name: str, seed: int = 0) -> Wave:
    """One of :data:`SOUNDS` but babble, with an RMS of 1 over its loud part.

    Raises:
        KeyError: no such sound.
    """
    digits = sum(ord(letter) << index for index, letter in enumerate(name))
    wave = _MAKERS[name](np.random.default_rng((seed, digits)))
    return wave / loudness(wave)


def loudness(wave: Wave) -> float:
    """RMS over what is above a hundredth of the peak, so that silence around does not count."""
    loud = wave[np.abs(wave) > 0.01 * np.abs(wave).max(initial=0.0)]
    return float(np.sqrt(np.mean(loud**2))) if len(loud) else 1.0
