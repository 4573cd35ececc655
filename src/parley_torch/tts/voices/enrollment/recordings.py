"""Recordings of a speaker: their samples, their faults and their loudness.

Loudness is that of broadcasting (ITU-R BS.1770); the recordings for Turbo's voices are normalised to it.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import soundfile
from numpy.typing import NDArray

from parley.errors import (
    ReferenceAudioError,
    ReferenceClippedError,
    ReferenceNotMonoError,
    ReferenceTooLongError,
    ReferenceTooQuietError,
    ReferenceTooShortError,
    UnsupportedSampleRateError,
)
from parley.vad.silero import CONTEXT, SAMPLE_RATE, STATE, WINDOW, SileroVad

RATES = (8_000, 48_000)
_FORMATS = (b"RIFF", b"fLaC", b"OggS")
"""First bytes of the files that are passed to the decoder: WAV, FLAC, OGG."""
_SPEECH = 0.5
"""Probability from which a window counts as speech."""
_PAUSE_WINDOWS = 9
"""0.29 s: shorter pauses are part of the speech."""
_CLIPPING_PEAK = 0.9
_CLIPPING_RUN = 3
_NOISY, _BAND_LIMITED = "noisy", "narrow band"
_SILENCE_DB = -100.0

Detect: TypeAlias = Callable[[NDArray[np.float32]], NDArray[np.float32]]
"""f32 ``[n]`` at 16 kHz → the probability of speech in each window of 512 samples."""
TARGET_LUFS = -27.0
"""Loudness of the recordings that Turbo was trained on."""
_BLOCK_S, _STEP_S = 0.4, 0.1
_ABSOLUTE_GATE, _RELATIVE_GATE = -70.0, -10.0
_OFFSET = -0.691
_RING_S = 0.5
"""Length of the filters' response."""


def read_recording(
    data: bytes, sample_rate: int | None, *, max_bytes: int, max_s: float
) -> tuple[NDArray[np.float32], int]:
    """Samples and their rate.

    Args:
        data: a WAV, FLAC or OGG file, or PCM16 little endian.
        sample_rate: hertz of PCM16; None: ``data`` is a file.
        max_bytes: of ``data``.
        max_s: seconds of the recording.

    Returns:
        f32 ``[n]`` within ±1 (or beyond, from files of floats), and hertz.

    Raises:
        ReferenceAudioError: it is empty, too large or cannot be read; or a subclass: it is not mono or
            too long.
        UnsupportedSampleRateError: fewer than 8,000 or more than 48,000 samples a second.
    """
    if not data:
        raise ReferenceAudioError("there is no recording")
    if len(data) > max_bytes:
        raise ReferenceAudioError(f"the recording has {len(data)} bytes; at most {max_bytes} are read")
    audio, rate = _read_file(data, max_s) if sample_rate is None else _read_pcm(data, sample_rate)
    if not len(audio):
        raise ReferenceAudioError("the recording is empty")
    if len(audio) > max_s * rate:
        raise ReferenceTooLongError(
            f"the recording lasts longer than {max_s:g} s; cut out the best part of it"
        )
    if not np.isfinite(audio).all():
        raise ReferenceAudioError("the recording holds values that are not numbers")
    return audio, rate


def _read_pcm(data: bytes, rate: int) -> tuple[NDArray[np.float32], int]:
    _check_rate(rate)
    if len(data) % 2:
        raise ReferenceAudioError(f"{len(data)} bytes are not PCM16: samples have two bytes each")
    return np.frombuffer(data, "<i2").astype(np.float32) / np.float32(32_768), rate


def _read_file(data: bytes, max_s: float) -> tuple[NDArray[np.float32], int]:
    if not data.startswith(_FORMATS):
        raise ReferenceAudioError("the recording is neither a WAV, FLAC nor OGG file")
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            _check_rate(file.samplerate)
            if file.channels != 1:
                raise ReferenceNotMonoError(
                    f"the recording has {file.channels} channels; send one, so that nothing is mixed "
                    "that does not belong together"
                )
            # One second more than the limit: a file may be longer than its header says.
            audio = file.read(int((max_s + 1) * file.samplerate), dtype="float32")
            return np.asarray(audio, np.float32), int(file.samplerate)
    except soundfile.LibsndfileError as error:
        raise ReferenceAudioError(f"the recording cannot be read: {error.error_string}") from error


def _check_rate(rate: int) -> None:
    if not RATES[0] <= rate <= RATES[1]:
        raise UnsupportedSampleRateError(
            f"the recording has {rate} samples a second; it must be {RATES[0]} to {RATES[1]}"
        )


@dataclass(frozen=True)
class EnrollmentLimits:
    """Requirements of a recording."""

    min_speech_s: float = 5.0
    max_s: float = 30.0
    max_bytes: int = 16 << 20
    min_level_db: float = -45.0
    """Lowest level of the speech, against full scale."""
    max_clipped: float = 0.001
    """Share of samples that may be clipped."""
    min_snr_db: float = 15.0
    """A lower one causes a warning."""


@dataclass(frozen=True)
class Examination:
    """Measurements of a recording."""

    speech_s: float
    """Seconds of speech, short pauses included."""
    level_db: float
    """Level of the speech, against full scale."""
    snr_db: float
    """Level of the speech above that of the pauses."""
    warnings: Sequence[str]


def silero(session: Any) -> Detect:
    """Speech probabilities from Silero's network; ``session`` is ONNX Runtime's of ``silero_vad.onnx``."""
    network = SileroVad(session)

    def detect(audio: NDArray[np.float32]) -> NDArray[np.float32]:
        windows = _windows(audio)[None]
        counts = np.array([windows.shape[1]], np.int32)
        state, context = np.zeros((1, *STATE), np.float32), np.zeros((1, CONTEXT), np.float32)
        probabilities, _, _ = network.detect(windows, counts, state, context)
        return np.asarray(probabilities[0], np.float32)

    return detect


def examine(
    audio: NDArray[np.float32],
    audio_16k: NDArray[np.float32],
    rate: int,
    detect: Detect,
    limits: EnrollmentLimits,
) -> Examination:
    """Measure a recording, and refuse one that is unsuitable.

    Args:
        audio: f32 ``[n]``, as it was recorded.
        audio_16k: f32 ``[m]``, the same at 16 kHz.
        rate: hertz of ``audio``.
        detect: detects speech.
        limits: requirements.

    Raises:
        ReferenceTooQuietError: it is silent or too quiet.
        ReferenceClippedError: its peaks are cut off.
        ReferenceTooShortError: it holds too little speech.
    """
    levels = _levels(audio_16k)
    if not len(levels) or np.percentile(levels, 95) < limits.min_level_db:
        loudest = levels.max(initial=_SILENCE_DB)
        if loudest <= _SILENCE_DB:
            raise ReferenceTooQuietError("the recording is silent")
        raise ReferenceTooQuietError(
            f"the recording is too quiet: hardly anything is above {limits.min_level_db:g} dB of full scale"
        )
    if (share := clipped_share(audio)) > limits.max_clipped:
        raise ReferenceClippedError(
            f"{share:.1%} of the recording is cut off at its peak: record it again, not as loud"
        )
    probabilities = detect(audio_16k)
    speech = _without_short_pauses(probabilities >= _SPEECH)
    speech_s = float(speech.sum()) * WINDOW / SAMPLE_RATE
    if speech_s < limits.min_speech_s:
        raise ReferenceTooShortError(
            f"the recording holds {speech_s:.1f} s of speech; {limits.min_speech_s:g} s are needed"
        )
    level = float(np.median(levels[speech]))
    pauses = levels[~speech]
    noise = float(np.percentile(pauses, 50) if len(pauses) >= _PAUSE_WINDOWS else np.percentile(levels, 5))
    warnings = []
    if level - noise < limits.min_snr_db:
        warnings.append(_NOISY)
    if rate < SAMPLE_RATE:
        warnings.append(_BAND_LIMITED)
    return Examination(speech_s, level, level - noise, warnings)


def clipped_share(audio: NDArray[np.float32]) -> float:
    """The share of samples in flat stretches at the peak; ``audio`` must not be empty."""
    level = np.abs(audio)
    peak = float(level.max())
    if peak < _CLIPPING_PEAK:
        return 0.0
    flat = level >= 0.999 * peak
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flat, [False]]).astype(np.int8)))
    lengths = edges[1::2] - edges[::2]
    return float(lengths[lengths >= _CLIPPING_RUN].sum()) / len(audio)


def _windows(audio: NDArray[np.float32]) -> NDArray[np.float32]:
    """Whole windows, ``[w, 512]``; the rest is dropped."""
    return audio[: len(audio) // WINDOW * WINDOW].reshape(-1, WINDOW)


def _levels(audio: NDArray[np.float32]) -> NDArray[np.float64]:
    """Decibels of each window against full scale, ``[w]``."""
    power = np.square(_windows(audio).astype(np.float64)).mean(axis=1)
    return np.asarray(10.0 * np.log10(np.maximum(power, 10.0 ** (_SILENCE_DB / 10.0))), np.float64)


def _without_short_pauses(speech: NDArray[np.bool_]) -> NDArray[np.bool_]:
    filled = speech.copy()
    places = np.flatnonzero(speech)
    for before, after in pairwise(places):
        if after - before <= _PAUSE_WINDOWS + 1:
            filled[before:after] = True
    return filled


def normalize_loudness(audio: NDArray[np.float32], rate: int) -> NDArray[np.float32]:
    """Scale audio of at least 0.4 s, not silent, to :data:`TARGET_LUFS`."""
    gain = 10.0 ** ((TARGET_LUFS - loudness_lufs(audio, rate)) / 20.0)
    return np.asarray(audio * np.float32(gain), np.float32)


def loudness_lufs(audio: NDArray[np.float32], rate: int) -> float:
    """Loudness of at least 0.4 s of mono audio; :data:`TARGET_LUFS` if all of it is below the gate."""
    weighted = _weighted(audio.astype(np.float64), rate)
    block, step = int(_BLOCK_S * rate), int(_STEP_S * rate)
    blocks = np.lib.stride_tricks.sliding_window_view(weighted, block)[::step]
    power = np.square(blocks).mean(axis=1)
    audible = power[_lufs(power) >= _ABSOLUTE_GATE]
    if not len(audible):
        return TARGET_LUFS
    gate = _lufs(audible.mean()) + _RELATIVE_GATE
    return float(_lufs(audible[_lufs(audible) > gate].mean()))


def _lufs(power: NDArray[np.float64] | np.float64) -> NDArray[np.float64]:
    return np.asarray(_OFFSET + 10.0 * np.log10(np.maximum(power, 1e-20)), np.float64)


def _weighted(audio: NDArray[np.float64], rate: int) -> NDArray[np.float64]:
    """K-weighting: a shelf for the head, and a high pass."""
    length = len(audio) + int(_RING_S * rate)
    delay = np.exp(-2j * np.pi * np.fft.rfftfreq(length))
    response = _response(_shelf(rate), delay) * _response(_high_pass(rate), delay)
    return np.fft.irfft(np.fft.rfft(audio, length) * response, length)[: len(audio)]


def _response(
    filter_: tuple[tuple[float, ...], tuple[float, ...]], delay: NDArray[np.complex128]
) -> NDArray[np.complex128]:
    above, below = filter_
    return np.asarray(np.polyval(above[::-1], delay) / np.polyval(below[::-1], delay), np.complex128)


def _shelf(rate: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    gain, quality, corner = 10.0 ** (4.0 / 40.0), 1 / math.sqrt(2), 1500.0
    angle = 2 * math.pi * corner / rate
    cosine, root = math.cos(angle), 2 * math.sqrt(gain) * math.sin(angle) / (2 * quality)
    more, less = gain + 1, gain - 1
    above = (
        gain * (more + less * cosine + root),
        -2 * gain * (less + more * cosine),
        gain * (more + less * cosine - root),
    )
    below = (more - less * cosine + root, 2 * (less - more * cosine), more - less * cosine - root)
    return above, below


def _high_pass(rate: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    quality, corner = 0.5, 38.0
    angle = 2 * math.pi * corner / rate
    cosine, alpha = math.cos(angle), math.sin(angle) / (2 * quality)
    return ((1 + cosine) / 2, -(1 + cosine), (1 + cosine) / 2), (1 + alpha, -2 * cosine, 1 - alpha)
