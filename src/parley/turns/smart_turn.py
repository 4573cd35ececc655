"""End-of-turn networks on ONNX Runtime: the probability that a pause is the end of a turn.

Smart Turn v3.2 (https://github.com/pipecat-ai/smart-turn, BSD-2-Clause) hears, in the last eight seconds of
the user's speech, how it ended: Whisper's smallest encoder with a classifier on it, quantised to 8 bits. It
learned from people. ``tiny-smart-turn`` learned from synthetic voices, hears the last three seconds, and is
used in the same way.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley.audio.whisper_mel import SAMPLE_RATE, WhisperMel
from parley.errors import InferenceError, WeightsNotFoundError

FILE = "smart-turn-v3.2-cpu.onnx"
TINY_FILE = "smart-turn.onnx"
BEFORE_ONSET_MS = 500
"""Audio before the turn's first speech that a score hears, as in the networks' training."""


class TurnRequest(msgspec.Struct, frozen=True, kw_only=True):
    """May come with a pause to be scored."""

    traceparent: str = ""
    """Span of the caller (W3C Trace Context): that of the model is below it. Empty: there is none."""


def bundled_folder() -> Path:
    """Where the package ``pipecat-ai`` keeps the network; nothing of the package is imported.

    Raises:
        WeightsNotFoundError: the package is not installed.
    """
    package = importlib.util.find_spec("pipecat")
    if package is None or not package.submodule_search_locations:
        raise WeightsNotFoundError("the end-of-turn network comes with the package pipecat-ai: install it")
    return Path(package.submodule_search_locations[0]) / "audio" / "turn" / "smart_turn" / "data"


def network_file(folder: Path) -> Path:
    """The network that a folder of weights has.

    Raises:
        WeightsNotFoundError: it has none.
    """
    for name in (FILE, TINY_FILE):
        if (folder / name).is_file():
            return folder / name
    raise WeightsNotFoundError(f"{folder} has neither {FILE} nor {TINY_FILE}")


class SmartTurn:
    """Scores the pauses of many streams; remembers nothing of them."""

    def __init__(self, session: Any, *, rows: int = 1) -> None:
        """Use a session of the network.

        Args:
            session: an ``onnxruntime.InferenceSession``. Inputs: ``input_features`` f32 ``[B, 80, frames]``,
                up to 800 of Whisper's feature frames, and perhaps ``audio`` f32 ``[B, samples]`` within ±1.
                Output: f32 ``[B, 1]``.
            rows: pauses in one run of the network. On a CPU one after the other is faster than all
                together, and no score depends on the others.
        """
        self._session = session
        self._rows = rows
        self._features = WhisperFeatures()
        lengths = {tensor.name: tensor.shape[-1] for tensor in session.get_inputs()}
        frames = lengths["input_features"]
        self._frames = frames if isinstance(frames, int) else FRAMES
        self._samples: int = lengths.get("audio", 0)

    def score(self, speech: Sequence[NDArray[np.int16]]) -> NDArray[np.float32]:
        """How likely each turn is over.

        Args:
            speech: i16 ``[n]`` each, 16 kHz mono: the turn so far with the silence after it; only the last
                eight seconds count.

        Returns:
            f32 ``[B]``, 0-1.

        Raises:
            InferenceError: the network failed.
        """
        scores = np.zeros(len(speech), np.float32)
        for start in range(0, len(speech), self._rows):
            audio = last_seconds(speech[start : start + self._rows])
            inputs = {"input_features": self._features.compute(audio, self._frames)}
            if self._samples:
                inputs["audio"] = audio[:, -self._samples :]
            try:
                (scored,) = self._session.run(None, inputs)
            except Exception as error:  # ONNX Runtime's own exceptions have no common base class
                raise InferenceError(f"the end-of-turn network failed: {error}") from error
            scores[start : start + self._rows] = scored[:, 0]
        return scores


SAMPLES = 8 * SAMPLE_RATE
"""Audio that the features are made of."""
BANDS = 80
FRAMES = 800
_VARIANCE_GUARD = np.float32(1e-7)
_FULL_SCALE = np.float32(32768)


def last_seconds(pieces: Sequence[NDArray[np.int16]]) -> NDArray[np.float32]:
    """The ends of recordings, in one array.

    Args:
        pieces: i16 ``[n]`` each, 16 kHz mono, any length.

    Returns:
        f32 ``[B, 128000]`` within ±1; what is shorter begins with zeros.
    """
    rows = np.zeros((len(pieces), SAMPLES), np.float32)
    for row, piece in zip(rows, pieces, strict=True):
        end = piece[-SAMPLES:]
        row[SAMPLES - len(end) :] = end.astype(np.float32) / _FULL_SCALE
    return rows


class WhisperFeatures:
    """The constants of the computation; holds no audio."""

    def __init__(self) -> None:
        self._mel = WhisperMel(BANDS)

    def compute(self, audio: NDArray[np.float32], frames: int = FRAMES) -> NDArray[np.float32]:
        """The features of every row.

        Args:
            audio: f32 ``[B, 128000]`` within ±1.
            frames: how many of the last frames are wanted. Fewer take less time; the loudest band is then
                looked for in these alone.

        Returns:
            f32 ``[B, 80, frames]``. A row does not depend on the others.
        """
        mean = audio.mean(axis=1, keepdims=True)
        deviation = np.sqrt(audio.var(axis=1, keepdims=True) + _VARIANCE_GUARD)
        features = np.empty((len(audio), BANDS, frames), np.float32)
        # A row at a time: the spectrum of one is 13 MB in double precision, which Whisper uses.
        for row, samples in enumerate((audio - mean) / deviation):
            features[row] = self._mel.compute(samples, slice(FRAMES - frames, FRAMES))
        return features
