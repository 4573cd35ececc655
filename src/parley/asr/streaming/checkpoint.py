"""A cache-aware streaming export on disk.

It is laid out as other exports are (:mod:`parley.asr.checkpoint`), but for the encoder, of which
there is one file for each look-ahead: ``encoder-r0.onnx``, ``encoder-r1.onnx`` and so on. Its
``config.json`` says which under ``streaming``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from parley.asr import checkpoint
from parley.asr.checkpoint import CONFIG_FILE, DECODER_FILE, VOCABULARY_FILE, Checkpoint
from parley.errors import ModelLoadingError, WeightsNotFoundError

DEFAULT = "tiny-nemotron-streaming"
"""Folder of the export that the project ships."""
FILES = (DECODER_FILE, VOCABULARY_FILE, CONFIG_FILE)


class StreamingConfig(msgspec.Struct, frozen=True):
    """What ``config.json`` says under ``streaming``."""

    look_aheads: tuple[int, ...]
    """Encoder frames that each of the encoders waits for."""
    cache_last_channel: tuple[int, int, int]
    """Shape of one stream's cache: layers, frames of the past, width."""
    cache_last_time: tuple[int, int, int]
    """Layers, width, kernel - 1."""
    history_frames: Literal[9] = 9
    """Feature frames of the past that go in again."""


class _Config(msgspec.Struct, frozen=True):
    streaming: StreamingConfig


@dataclass(frozen=True)
class StreamingExport:
    """An export's folder, read but without its networks."""

    checkpoint: Checkpoint
    streaming: StreamingConfig

    def encoder(self, look_ahead: int) -> Path:
        """The ONNX file for one look-ahead."""
        return self.checkpoint.folder / f"encoder-r{look_ahead}.onnx"

    def look_ahead_ms(self, look_ahead: int) -> int:
        """What a client calls a look-ahead: the audio of a chunk (milliseconds)."""
        return (look_ahead + 1) * self.checkpoint.config.frame_ms


def load(folder: Path) -> StreamingExport:
    """Read what describes an export.

    Raises:
        WeightsNotFoundError: a file of the export is missing.
        ModelLoadingError: a file cannot be understood, or describes another kind of model.
    """
    common = checkpoint.load(folder, FILES)
    try:
        config = msgspec.json.decode((folder / CONFIG_FILE).read_bytes(), type=_Config)
    except msgspec.MsgspecError as error:
        raise ModelLoadingError(f"{folder / CONFIG_FILE} is not of a streaming model: {error}") from error
    if common.config.normalize != "NA":
        raise ModelLoadingError(f"{folder}: a model that normalises its features cannot stream")
    return StreamingExport(common, config.streaming)


def choose(export: StreamingExport, wanted_ms: Sequence[int]) -> dict[int, Path]:
    """The encoders for some look-aheads.

    Args:
        export: the export.
        wanted_ms: what clients may choose (milliseconds of audio).

    Returns:
        Their files by look-ahead in encoder frames.

    Raises:
        ModelLoadingError: the export has no encoder for one of them.
        WeightsNotFoundError: an encoder's file is missing.
    """
    there = {export.look_ahead_ms(look_ahead): look_ahead for look_ahead in export.streaming.look_aheads}
    if missing := [wanted for wanted in wanted_ms if wanted not in there]:
        raise ModelLoadingError(
            f"{export.checkpoint.folder} has no encoder for {', '.join(map(str, missing))} ms; "
            f"it has those for {', '.join(map(str, there))} ms"
        )
    files = {there[wanted]: export.encoder(there[wanted]) for wanted in wanted_ms}
    for path in files.values():
        if not path.is_file():
            raise WeightsNotFoundError(f"{path} does not exist")
    return files
