"""What callers say: recordings, and where speech begins and ends in them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from parley_client.audio.files import read_speech, speech_span

_COMMAND = "stop"
"""Recordings of this name interrupt the agent; the others are questions."""


@dataclass(frozen=True)
class Recording:
    """One sentence: 16 kHz mono PCM16, little endian."""

    name: str
    pcm: bytes
    first: int
    """Its first loud sample."""
    last: int
    """One past its last loud sample: the true end of speech."""


@dataclass(frozen=True)
class Repertoire:
    """All that a caller can say."""

    questions: tuple[Recording, ...]
    commands: tuple[Recording, ...]
    """Said over the agent's voice; they may be left without an answer."""


def load_repertoire(folder: Path) -> Repertoire:
    """Read the WAV files of a folder, named ``NN-name.wav``.

    Raises:
        AudioFileError: a file cannot be read.
        ValueError: the folder lacks a question or a command.
    """
    found = [_read(path) for path in sorted(folder.glob("*.wav"))]
    questions = tuple(one for one in found if one.name != _COMMAND)
    commands = tuple(one for one in found if one.name == _COMMAND)
    if not questions or not commands:
        raise ValueError(f"{folder} needs recordings: questions, and one that is named *-{_COMMAND}.wav")
    return Repertoire(questions, commands)


def _read(path: Path) -> Recording:
    samples = read_speech(path)
    first, last = speech_span(samples)
    return Recording(path.stem.partition("-")[2], samples.astype("<i2").tobytes(), first, last)
