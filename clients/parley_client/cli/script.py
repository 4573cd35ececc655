"""A conversation to be played: what the user says, and when.

A script is a TOML file::

    title = "A short call"
    system_prompt = "You are a friendly voice assistant."   # optional

    [[turn]]
    say = "hello.wav"          # beside the script
    text = "hello"             # what is said in it; optional, for reading along

    [[turn]]
    say = "models:test-recordings/beckett.wav"   # where the weights are: PARLEY_MODELS_DIR, or models/
    part = [3350, 6100]        # only this part of it (ms)
    optional = true            # left out where the recording is not there
    pause_ms = 800             # after the last answer was heard

    [[turn]]
    say = "stop.wav"
    barge_in_ms = 2500         # speaks over the last answer, this long after it began

    [[turn]]
    write = "two coffees"      # typed instead of said

    [[turn]]
    press = "1234#"            # keys of a telephone
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
import numpy as np

from parley.errors import InvalidMessageError
from parley.protocol import INPUT_SAMPLE_RATE
from parley_client.audio.files import Pcm, read_speech
from parley_client.cli import CHECKOUT
from parley_client.errors import ScriptError
from parley_client.options import check_keys

DEFAULT_PAUSE_MS = 600
_AMONG_WEIGHTS = "models:"


@dataclass(frozen=True)
class ScriptTurn:
    """One thing that the user says, types or presses."""

    name: str
    samples: Pcm
    """16 kHz mono, shape [n]; empty if nothing is said."""
    text: str = ""
    """The words that are said, if known."""
    pause_ms: int = DEFAULT_PAUSE_MS
    """Between the end of the last answer and this turn."""
    barge_in_ms: int | None = None
    """Speak this long after the last answer began to be heard, not after its end."""
    write: str = ""
    """Typed instead of said."""
    press: str = ""
    """Keys that are pressed instead."""


@dataclass(frozen=True)
class Script:
    """A conversation."""

    turns: tuple[ScriptTurn, ...]
    title: str = ""
    system_prompt: str | None = None
    left_out: tuple[str, ...] = ()
    """The texts of turns whose recordings are missing."""


_Milliseconds: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


class _Turn(msgspec.Struct, forbid_unknown_fields=True):
    say: str = ""
    part: tuple[int, int] | None = None
    write: str = ""
    press: str = ""
    text: str = ""
    pause_ms: _Milliseconds = DEFAULT_PAUSE_MS
    barge_in_ms: _Milliseconds | None = None
    optional: bool = False


class _File(msgspec.Struct, forbid_unknown_fields=True):
    turn: list[_Turn]
    title: str = ""
    system_prompt: str | None = None


def load_script(path: Path) -> Script:
    """Read a script and the clips that it names.

    Raises:
        ScriptError: the script is missing, not valid or without turns.
        AudioFileError: a clip cannot be read.
    """
    try:
        file = msgspec.toml.decode(path.read_bytes(), type=_File)
    except OSError as error:
        raise ScriptError(f"{path}: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ScriptError(f"{path}: {error}") from error
    if not file.turn:
        raise ScriptError(f"{path}: a script needs at least one [[turn]]")
    absent = [
        turn
        for turn in file.turn
        if turn.optional and turn.say and not _clip(turn.say, path.parent).is_file()
    ]
    if len(absent) == len(file.turn):
        raise ScriptError(f"{path}: no turn is left without the recordings that are not there")
    try:
        turns = tuple(_load_turn(turn, path.parent) for turn in file.turn if turn not in absent)
    except InvalidMessageError as error:
        raise ScriptError(f"{path}: {error}") from error
    return Script(turns, file.title, file.system_prompt, tuple(turn.text or turn.say for turn in absent))


def _load_turn(turn: _Turn, folder: Path) -> ScriptTurn:
    """Read what is said in a turn.

    Raises:
        InvalidMessageError: not exactly one thing is done in it, keys that do not exist are pressed, or the
            part is not one of the clip.
        ScriptError: a recording that is brought with the weights is not there.
        AudioFileError: the clip cannot be read.
    """
    if sum(map(bool, (turn.say, turn.write, turn.press))) != 1:
        raise InvalidMessageError("each [[turn]] needs one of say, write and press")
    if turn.optional and not turn.say:
        raise InvalidMessageError("optional belongs to say")
    if turn.press:
        check_keys(turn.press)
    return ScriptTurn(
        name=Path(turn.say).stem or turn.write or turn.press,
        samples=_said(turn, folder),
        text=turn.text,
        pause_ms=turn.pause_ms,
        barge_in_ms=turn.barge_in_ms,
        write=turn.write,
        press=turn.press,
    )


def _said(turn: _Turn, folder: Path) -> Pcm:
    if not turn.say:
        if turn.part:
            raise InvalidMessageError("part belongs to say")
        return np.zeros(0, np.int16)
    file = _clip(turn.say, folder)
    if turn.say.startswith(_AMONG_WEIGHTS) and not file.is_file():
        name = turn.say.removeprefix(_AMONG_WEIGHTS).partition("/")[0]
        raise ScriptError(f"{file}: no such file; bring it with `make fetch MODEL={name}`")
    samples = read_speech(file)
    if turn.part is None:
        return samples
    begin, end = (ms * INPUT_SAMPLE_RATE // 1000 for ms in turn.part)
    if not 0 <= begin < end <= len(samples):
        length_ms = len(samples) * 1000 // INPUT_SAMPLE_RATE
        raise InvalidMessageError(f"part {list(turn.part)} is not within the {length_ms} ms of {turn.say}")
    return samples[begin:end]


def _clip(written: str, folder: Path) -> Path:
    among_weights = written.removeprefix(_AMONG_WEIGHTS)
    if among_weights == written:
        return folder / written
    return Path(os.environ.get("PARLEY_MODELS_DIR") or CHECKOUT / "models") / among_weights


def script_of_files(paths: list[Path], barge_in_ms: int | None = None) -> Script:
    """A script that plays audio files; with ``barge_in_ms`` all but the first interrupt the answer before."""
    return Script(
        tuple(
            ScriptTurn(name=path.stem, samples=read_speech(path), barge_in_ms=barge_in_ms if index else None)
            for index, path in enumerate(paths)
        )
    )
