"""Audio files in and out."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from parley.protocol import INPUT_SAMPLE_RATE
from parley_client.errors import AudioFileError
from parley_client.events import AgentAudio

Pcm = NDArray[np.int16]

# A sample counts as speech above this part of the clip's peak (-40 dB).
_SPEECH_LEVEL = 0.01
_MAX_SECONDS = 600


def resample(samples: Pcm, rate: int, to: int) -> Pcm:
    """Mono PCM16 at another rate (Hertz). Shape [n] to [m]."""
    if rate == to or not len(samples):
        return samples
    return np.asarray(soxr.resample(samples, rate, to), np.int16)


def read_speech(path: Path, *, max_seconds: int = _MAX_SECONDS) -> Pcm:
    """A file as 16 kHz mono PCM16, whatever its rate, channels and format are.

    Raises:
        AudioFileError: missing, not audio, empty, or longer than ``max_seconds``.
    """
    if _is_special(path):
        raise AudioFileError(f"{path}: not a file that can be read from its beginning to its end")
    try:
        with soundfile.SoundFile(path) as file:
            if file.frames > max_seconds * file.samplerate:
                raise AudioFileError(f"{path}: longer than {max_seconds // 60} minutes")
            channels = file.read(dtype="float32", always_2d=True)
            rate = file.samplerate
    except (soundfile.LibsndfileError, OSError) as error:
        raise AudioFileError(f"{path}: {_why_unreadable(path)}") from error
    if not len(channels):
        raise AudioFileError(f"{path}: no audio in it")
    mono: NDArray[np.float32] = soxr.resample(channels.mean(axis=1), rate, INPUT_SAMPLE_RATE)
    if not len(mono):
        raise AudioFileError(f"{path}: too short: less than a sample of {INPUT_SAMPLE_RATE} Hz")
    return np.asarray(np.clip(mono * 32768, -32768, 32767), np.int16)


def _is_special(path: Path) -> bool:
    """Whether it is a pipe or a device, which may have no data yet, or no end."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _why_unreadable(path: Path) -> str:
    try:
        if path.is_dir():
            return "is a folder"
        return "not an audio file that can be read" if path.exists() else "no such file"
    except OSError as error:  # a name that is too long, or a folder that cannot be entered
        return error.strerror or "cannot be read"


def speech_span(samples: Pcm) -> tuple[int, int]:
    """First and one past the last sample that is louder than 1 % of the peak.

    This is the *true* beginning and end of a clip's speech, from which latencies are measured.
    A clip that is silent throughout spans all of itself.
    """
    level = np.abs(samples.astype(np.int32))
    loud = np.flatnonzero(level > max(1, _SPEECH_LEVEL * level.max(initial=0)))
    return (int(loud[0]), int(loud[-1]) + 1) if len(loud) else (0, len(samples))


def write_speech(path: Path | str, pieces: Sequence[AgentAudio]) -> None:
    """Write pieces of the agent's speech, at least one, as one mono WAV.

    Raises:
        AudioFileError: the file cannot be written.
    """
    _write(Path(path), np.concatenate([piece.samples for piece in pieces]), pieces[0].sample_rate)


def write_stereo(path: Path, left: Pcm, right: Pcm, rate: int) -> None:
    """Write a stereo WAV; the shorter side is padded with silence.

    Raises:
        AudioFileError: the file cannot be written.
    """
    stereo = np.zeros((max(len(left), len(right)), 2), np.int16)
    stereo[: len(left), 0] = left
    stereo[: len(right), 1] = right
    _write(path, stereo, rate)


def _write(path: Path, samples: Pcm, rate: int) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, samples, rate, subtype="PCM_16", format="WAV")
    except (soundfile.LibsndfileError, OSError) as error:
        raise AudioFileError(f"{path}: cannot be written: {error}") from error
