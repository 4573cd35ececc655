"""The cache-aware streaming encoder: a FastConformer that keeps caches instead of encoding again.

Every chunk of ``8 * (R + 1)`` new feature frames goes in together with the few frames before it and
with the caches that the chunk before left, and ``R + 1`` encoder frames of 80 ms come out. ``R``,
the look-ahead, is baked into an export: there is one file for each. The caches of all streams lie in
preallocated arrays, of which a step reads and writes only its own rows (:class:`SlotArrays`).

See https://arxiv.org/abs/2312.17279.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley.asr import checkpoint
from parley.asr.checkpoint import CONFIG_FILE, DECODER_FILE, VOCABULARY_FILE, Checkpoint
from parley.asr.streaming.keys import KEYS, VALUES, keep_keys
from parley.asr.streaming.prompt_graph import PROMPT
from parley.errors import InferenceError, ModelLoadingError, OverloadedError, WeightsNotFoundError
from parley.runtime.onnx_file import OnnxModel
from parley.runtime.parameters import Parameters

Rows: TypeAlias = dict[str, NDArray[Any]]
"""Arrays by name, all of the same length: one row for each of some streams."""


class SlotArrays:
    """One row of every array for each slot; a slot belongs to its acquirer.

    A step gathers the rows of its streams, works on these copies, and scatters what has come of
    them when it is sure: whatever fails before leaves no trace here, and the rows of streams that
    are not in the step are never read or written.
    """

    def __init__(self, slots: int, initial: Mapping[str, NDArray[Any]]) -> None:
        """Allocate.

        Args:
            slots: rows of every array.
            initial: by name, what a row holds when its slot is acquired.
        """
        self._initial = {name: value.copy() for name, value in initial.items()}
        # Untouched memory is not taken from the system: idle slots cost nothing.
        self._arrays = {
            name: np.zeros((slots, *value.shape), value.dtype) for name, value in self._initial.items()
        }
        self._free = list(range(slots - 1, -1, -1))
        self._slots = slots

    @property
    def free(self) -> int:
        """Free slots."""
        return len(self._free)

    def acquire(self) -> int:
        """Take a slot, with the initial values in its row.

        Raises:
            OverloadedError: all slots are taken.
        """
        if not self._free:
            raise OverloadedError(f"all {self._slots} slots for utterances are in use")
        slot = self._free.pop()
        for name, value in self._initial.items():
            self._arrays[name][slot] = value
        return slot

    def release(self, slot: int) -> None:
        """Give a slot back that was acquired and not yet given back."""
        assert slot not in self._free, f"slot {slot} was given back twice"
        self._free.append(slot)

    def gather(self, slots: NDArray[np.int64]) -> Rows:
        """Copies of some rows, in the order of ``slots``: i64 ``[B]``."""
        return {name: array[slots] for name, array in self._arrays.items()}

    def scatter(self, slots: NDArray[np.int64], rows: Rows) -> None:
        """Write rows back: ``rows[name][i]`` to slot ``slots[i]``."""
        for name, array in self._arrays.items():
            array[slots] = rows[name]


def take(rows: Rows, chosen: NDArray[np.int64], names: Sequence[str]) -> Rows:
    """Some of the rows of some arrays; all rows, in order, are not copied."""
    return {name: rows[name] if len(chosen) == len(rows[name]) else rows[name][chosen] for name in names}


def put(rows: Rows, chosen: NDArray[np.int64], values: Mapping[str, NDArray[Any]]) -> None:
    """Replace some rows by new ones; all of them, in order, are not copied."""
    for name, value in values.items():
        if len(chosen) == len(rows[name]):
            rows[name] = value
        else:
            rows[name][chosen] = value


SUBSAMPLING = 8
"""Feature frames per encoder frame."""
HISTORY = 9
"""Feature frames of the past that go in again; their encoder frames are dropped by the export."""
CHANNEL, TIME, LENGTH = "cache_last_channel", "cache_last_time", "cache_last_channel_len"
_FORMS = ((CHANNEL, TIME, LENGTH), (KEYS, VALUES, TIME, LENGTH))
"""The caches as NeMo exports them, or with keys and values in the place of what they are computed from."""
_NEXT = {LENGTH: "cache_last_channel_next_len"}
"""Outputs whose names are not made of their inputs' with ``_next``."""
_INPUTS = ("audio_signal", "length")
_OUTPUTS = ("outputs", "encoded_lengths")


class CacheAwareEncoder:
    """One look-ahead of a streaming encoder, on ONNX Runtime."""

    def __init__(
        self, session: Any, *, lookahead: int, channel: tuple[int, ...], time: tuple[int, ...]
    ) -> None:
        """Use a session of an encoder that was exported for one look-ahead.

        Args:
            session: with the inputs ``audio_signal`` f32 ``[B, bands, T]``, ``length`` i64 ``[B]``,
                ``cache_last_channel`` f32 ``[B, layers, left, D]``, ``cache_last_time`` f32
                ``[B, layers, D, kernel - 1]`` and ``cache_last_channel_len`` i64 ``[B]``; ``cache_keys`` and
                ``cache_values`` in the place of the first one (:func:`with_keys`); with language prompts also
                ``prompt_index`` i64 ``[B]``.
            lookahead: ``R``, in encoder frames.
            channel: shape of ``cache_last_channel`` for one stream.
            time: shape of ``cache_last_time`` for one stream.

        Raises:
            ModelLoadingError: the file is not such an encoder.
        """
        self._session = session
        self.chunk = SUBSAMPLING * (lookahead + 1)
        """New feature frames that go in at once."""
        shapes = {tensor.name: tensor.shape for tensor in session.get_inputs()}
        caches = _FORMS[KEYS in shapes]
        if missing := [name for name in caches if name not in shapes]:
            raise ModelLoadingError(f"the encoder has no input {', '.join(missing)}: it cannot stream")
        known: Rows = {TIME: np.zeros(time, np.float32), LENGTH: np.zeros((), np.int64)}
        self.initial: Rows = {name: known.get(name, np.zeros(channel, np.float32)) for name in caches}
        """The caches before the first chunk: one row of each, without the axis of the streams."""
        self._outputs = [*_OUTPUTS, *map(_next, caches)]
        self._bands = int(shapes["audio_signal"][1])
        self.is_prompted = PROMPT in shapes
        """Whether it has language prompts."""

    def warm_up(self, prompt: int = 0) -> None:
        """Run once, so that the first real chunk does not pay for what only the first run does.

        Args:
            prompt: index of the language prompt; a network whose prompts are fewer fails.

        Raises:
            InferenceError: the network cannot run at all.
        """
        features = np.zeros((1, self._bands, HISTORY + self.chunk), np.float32)
        caches = {name: value[None] for name, value in self.initial.items()}
        self.encode(features, caches, np.array([prompt], np.int64))

    def encode(
        self, features: NDArray[np.float32], caches: Rows, prompts: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[np.int64], Rows]:
        """Encode the next chunk of several streams.

        Args:
            features: f32 ``[B, bands, 9 + chunk]``, the past first.
            caches: a row of each cache for every stream.
            prompts: i64 ``[B]``, indices of language prompts; a model without prompts does not look at them.

        Returns:
            f32 ``[B, D, T]``, i64 ``[B]`` how many of the ``T`` frames are real, and the next caches.

        Raises:
            InferenceError: the network failed.
        """
        rows, _, frames = features.shape
        feed = {"audio_signal": features, "length": np.full(rows, frames, np.int64)} | {
            name: caches[name] for name in self.initial
        }
        if self.is_prompted:
            feed[PROMPT] = prompts
        try:
            encoded, lengths, *after = self._session.run(self._outputs, feed)
        except Exception as error:  # ONNX Runtime's own exceptions have no common base class
            raise InferenceError(f"the streaming encoder failed on {rows} rows: {error}") from error
        return encoded, lengths, dict(zip(self.initial, after, strict=True))


def _next(cache: str) -> str:
    return _NEXT.get(cache, f"{cache}_next")


def with_keys(file: bytes, channel: tuple[int, ...]) -> bytes:
    """An encoder in the other form, which computes keys and values of new frames only.

    Its caches take twice the memory, so it is for CPUs: to a GPU the caches are copied for each chunk.

    Args:
        file: of an encoder as NeMo exports it; its weights may be elsewhere.
        channel: shape of ``cache_last_channel`` for one stream.

    Raises:
        ModelLoadingError: attention in this graph is not as NeMo exports it.
    """
    prompt = (PROMPT,) if PROMPT in OnnxModel(file).inputs else ()
    return keep_keys(
        file,
        cache=channel,
        inputs=(*_INPUTS, TIME, LENGTH, *prompt),
        outputs=(*_OUTPUTS, _next(TIME), _next(LENGTH)),
    )


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


def load(folder: Path, files: Sequence[str] = FILES) -> StreamingExport:
    """Read what describes an export.

    Raises:
        WeightsNotFoundError: a file of the export is missing.
        ModelLoadingError: a file cannot be understood, or describes another kind of model.
    """
    common = checkpoint.load(folder, files)
    try:
        config = msgspec.json.decode((folder / CONFIG_FILE).read_bytes(), type=_Config)
    except msgspec.MsgspecError as error:
        raise ModelLoadingError(f"{folder / CONFIG_FILE} is not of a streaming model: {error}") from error
    if common.config.normalize != "NA":
        raise ModelLoadingError(f"{folder}: a model that normalises its features cannot stream")
    return StreamingExport(common, config.streaming)


def read_look_aheads(parameters: Parameters) -> list[int]:
    """What clients may choose (milliseconds of audio), by the parameter ``lookaheads_ms``.

    Raises:
        ModelLoadingError: it is no list of numbers.
    """
    text = parameters.text("lookaheads_ms", "160")
    try:
        return sorted({int(item) for item in text.split(",")})
    except ValueError as error:
        raise ModelLoadingError(
            f"lookaheads_ms of model {parameters.model} is {text!r}; it must be numbers with commas between"
        ) from error


def chosen_look_aheads(export: StreamingExport, wanted_ms: Sequence[int]) -> list[int]:
    """Some look-aheads in encoder frames.

    Raises:
        ModelLoadingError: the model was not exported for one of them.
    """
    there = {export.look_ahead_ms(look_ahead): look_ahead for look_ahead in export.streaming.look_aheads}
    if missing := [wanted for wanted in wanted_ms if wanted not in there]:
        raise ModelLoadingError(
            f"{export.checkpoint.folder} has no encoder for {', '.join(map(str, missing))} ms; "
            f"it has those for {', '.join(map(str, there))} ms"
        )
    return [there[wanted] for wanted in wanted_ms]


def choose(export: StreamingExport, wanted_ms: Sequence[int]) -> dict[int, Path]:
    """The encoders for some look-aheads, as files by look-ahead in encoder frames.

    Raises:
        ModelLoadingError: see :func:`chosen_look_aheads`.
        WeightsNotFoundError: an encoder's file is missing.
    """
    files = {look_ahead: export.encoder(look_ahead) for look_ahead in chosen_look_aheads(export, wanted_ms)}
    for path in files.values():
        if not path.is_file():
            raise WeightsNotFoundError(f"{path} does not exist")
    return files
