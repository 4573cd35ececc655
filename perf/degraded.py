"""Recordings as they come from noisy rooms, quiet speakers, far corners and telephones; all made by code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from parley_gateway.audio.codecs import AudioFormat, AudioStreamDecoder, Encoder

Wave = NDArray[np.float64]
"""Mono at 16 kHz, ``[n]``, full scale is 1."""
RATE = 16_000
_FULL_SCALE = 32_768
_VOICES = 8
"""Of a babble."""


def to_wave(audio: NDArray[np.int16]) -> Wave:
    """Samples as numbers."""
    return audio.astype(np.float64) / _FULL_SCALE


def to_samples(wave: Wave) -> NDArray[np.int16]:
    """Numbers as samples; what is too loud is cut off."""
    return np.clip(np.rint(wave * _FULL_SCALE), -_FULL_SCALE, _FULL_SCALE - 1).astype(np.int16)


def white(count: int) -> Wave:
    """Noise of all frequencies."""
    return np.random.default_rng(1).normal(0.0, 0.1, count)


def hum(count: int) -> Wave:
    """A mains hum with its harmonics."""
    time = np.arange(count) / RATE
    return np.asarray(sum(0.1 / k * np.sin(2 * np.pi * 50 * k * time) for k in (1, 2, 3, 5)))


def music(count: int) -> Wave:
    """Four chords in turn, each of plucked strings, with a beat."""
    out = np.zeros(count)
    rng = np.random.default_rng(2)
    chords = ((220.0, 261.6, 329.6), (174.6, 220.0, 261.6), (261.6, 329.6, 392.0), (196.0, 246.9, 293.7))
    for beat, start in enumerate(range(0, count, RATE // 2)):
        time = np.arange(min(RATE // 2, count - start)) / RATE
        for tone in chords[beat // 4 % 4]:
            out[start : start + len(time)] += sum(
                0.06 / k * np.sin(2 * np.pi * k * tone * time) * np.exp(-3 * k * time) for k in range(1, 6)
            )
        strike = min(800, len(time))
        out[start : start + strike] += 0.1 * rng.standard_normal(strike) * np.exp(-np.arange(strike) / 200)
    return out


def babble(voices: Sequence[NDArray[np.int16]], count: int) -> Wave:
    """Several people who speak at once: recordings one over the other, each going round."""
    loud = [to_wave(voice) for voice in voices]
    rows = [np.concatenate(loud[number::_VOICES]) for number in range(_VOICES)]
    return np.asarray(sum(np.resize(np.roll(row, 7_919 * number), count) for number, row in enumerate(rows)))


def mixed(speech: NDArray[np.int16], noise: Wave, snr_db: float) -> NDArray[np.int16]:
    """Speech in noise: so many decibels lie between their mean powers."""
    wave = to_wave(speech)
    gain = np.sqrt((wave**2).mean() / (noise**2).mean() / 10 ** (snr_db / 10))
    return to_samples(wave + gain * noise)


def soft(speech: NDArray[np.int16]) -> NDArray[np.int16]:
    """30 dB less."""
    return to_samples(to_wave(speech) * 10 ** (-30 / 20))


def far(speech: NDArray[np.int16]) -> NDArray[np.int16]:
    """From the other end of a room whose echoes take half a second to fade by 60 dB."""
    rng = np.random.default_rng(3)
    count = RATE // 2
    tail = rng.standard_normal(count) * 10 ** (-3 * np.arange(count) / count)
    tail[:200] = 0.0
    tail *= np.sqrt(2.0 / (tail**2).sum())  # 3 dB more than the direct sound
    tail[0] = 1.0
    wave = to_wave(speech)
    length = len(wave) + count
    heard = np.fft.irfft(np.fft.rfft(wave, length) * np.fft.rfft(tail, length), length)[: len(wave)]
    return to_samples(0.3 * heard)


def telephone(speech: NDArray[np.int16]) -> NDArray[np.int16]:
    """As 8 kHz µ-law carries it."""
    form = AudioFormat("ulaw", 8_000)
    return AudioStreamDecoder(form).decode(Encoder(form, RATE).encode(speech))


def versions(
    voices: Sequence[NDArray[np.int16]],
) -> Mapping[str, Callable[[NDArray[np.int16]], NDArray[np.int16]]]:
    """What is done to recordings, by name.

    Args:
        voices: recordings of which babble is made.
    """

    def in_white(snr_db: float) -> Callable[[NDArray[np.int16]], NDArray[np.int16]]:
        return lambda speech: mixed(speech, white(len(speech)), snr_db)

    def in_babble(snr_db: float) -> Callable[[NDArray[np.int16]], NDArray[np.int16]]:
        return lambda speech: mixed(speech, babble(voices, len(speech)), snr_db)

    return {
        "as they are": lambda speech: speech,
        **{f"white noise {snr} dB": in_white(snr) for snr in (20, 10, 5)},
        **{f"babble {snr} dB": in_babble(snr) for snr in (20, 10, 5)},
        "soft (-30 dB)": soft,
        "far": far,
        "telephone": telephone,
    }
