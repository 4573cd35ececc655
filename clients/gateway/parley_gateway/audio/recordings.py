"""Recordings that clients send, in whichever form, as 16 kHz mono PCM.

FFmpeg's libraries read them. The container is told from its first bytes and named to them, because left to
themselves they also open playlists and other forms that name further files and addresses.
"""

from __future__ import annotations

import io

import av
import numpy as np
from av.audio.frame import AudioFrame
from numpy.typing import NDArray

from parley.errors import InvalidAudioError
from parley.protocol import INPUT_SAMPLE_RATE

FORMATS = ("wav", "flac", "ogg", "mp3", "mp4", "m4a", "webm", "aac")
"""Names of what can be read, for clients."""


def read_recording(data: bytes, max_s: float) -> NDArray[np.int16]:
    """Decode a file; blocks, so run it in a thread.

    Args:
        data: the file.
        max_s: longest recording (seconds).

    Returns:
        i16 ``[n]``, 16 kHz mono.

    Raises:
        InvalidAudioError: it is none of :data:`FORMATS`, is damaged, has no audio, or is too long.
    """
    container = _container(data)
    try:
        with av.open(io.BytesIO(data), "r", format=container) as file:
            if not file.streams.audio:
                raise InvalidAudioError("there is no audio in the file")
            return _decode(file, int(max_s * INPUT_SAMPLE_RATE))
    except (av.FFmpegError, ValueError) as error:
        if isinstance(error, InvalidAudioError):
            raise
        raise InvalidAudioError(f"the file cannot be read as {container}: {error}") from error


def _decode(file: av.container.InputContainer, limit: int) -> NDArray[np.int16]:
    resampler = av.AudioResampler(format="s16", layout="mono", rate=INPUT_SAMPLE_RATE)
    pieces: list[NDArray[np.int16]] = []
    length = 0

    def take(frames: list[AudioFrame]) -> None:
        nonlocal length
        for frame in frames:
            pieces.append(frame.to_ndarray().reshape(-1).astype(np.int16, copy=False))
            length += len(pieces[-1])
        if length > limit:
            raise InvalidAudioError(f"the recording is longer than {limit // INPUT_SAMPLE_RATE} s")

    for frame in file.decode(audio=0):
        take(resampler.resample(frame))
    if length:
        take(resampler.resample(None))
    if not length:
        raise InvalidAudioError("the recording is empty")
    return np.concatenate(pieces)


# Where it begins, with which bytes, and FFmpeg's name for it.
_SIGNATURES = (
    (8, b"WAVE", "wav"),
    (0, b"fLaC", "flac"),
    (0, b"OggS", "ogg"),
    (0, b"\x1a\x45\xdf\xa3", "matroska"),
    (4, b"ftyp", "mov"),
    (0, b"ID3", "mp3"),
)
_SYNC = 0xFFE0  # eleven bits, at the beginning of every frame of MPEG audio
_ADTS = 0xFFF0
_ADTS_BITS = 0xFFF6


def _container(data: bytes) -> str:
    """FFmpeg's name for the form of a file.

    Raises:
        InvalidAudioError: it is none that is read.
    """
    for at, signature, name in _SIGNATURES:
        if data.startswith(signature, at):
            return name
    frame = int.from_bytes(data[:2], "big")
    if frame & _SYNC == _SYNC:
        return "aac" if frame & _ADTS_BITS == _ADTS else "mp3"
    raise InvalidAudioError(f"this is no audio file of a known form; known are {', '.join(FORMATS)}")
