"""A recording as it is sent, as samples."""

from __future__ import annotations

import io

import numpy as np
import soundfile
from numpy.typing import NDArray

from parley.errors import (
    ReferenceAudioError,
    ReferenceNotMonoError,
    ReferenceTooLongError,
    UnsupportedSampleRateError,
)

RATES = (8_000, 48_000)
_FORMATS = (b"RIFF", b"fLaC", b"OggS")
"""How files begin that are given to the decoder at all: WAV, FLAC, OGG."""


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
        f32 ``[n]`` within ±1 (files of numbers with a point may go beyond), and hertz.

    Raises:
        ReferenceAudioError: it is empty, too large or cannot be read; :class:`ReferenceNotMonoError`
            and :class:`ReferenceTooLongError` are of its kind.
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
            # One second more than is taken: a file may be longer than its header says.
            audio = file.read(int((max_s + 1) * file.samplerate), dtype="float32")
            return np.asarray(audio, np.float32), int(file.samplerate)
    except soundfile.LibsndfileError as error:
        raise ReferenceAudioError(f"the recording cannot be read: {error.error_string}") from error


def _check_rate(rate: int) -> None:
    if not RATES[0] <= rate <= RATES[1]:
        raise UnsupportedSampleRateError(
            f"the recording has {rate} samples a second; it must be {RATES[0]} to {RATES[1]}"
        )
