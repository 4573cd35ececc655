"""The three parts of a voice's network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parley.errors import InferenceError, InvalidModelOutputError, ModelLoadingError
from parley.runtime.onnx import Stop, open_session
from parley.runtime.onnx_file import OnnxModel, PartInput

Array = NDArray[np.float32]

FLOW_CONTEXT = 32
"""Frames on both sides of a piece on which the flow's result depends: 16 convolutions of width 5."""
DECODER_CONTEXT = 13
"""The same of the decoder."""

# Tensors as PyTorch's exporter named them, in all voices of one speaker.
_IDS, _LENGTHS, _SCALES = "input", "input_lengths", "scales"
_RHYTHM = "/dp/RandomNormalLike_output_0"
_MEAN, _LOG_SPREAD, _FRAMES = "/enc_p/Split_output_0", "/enc_p/Split_output_1", "/Ceil_output_0"
_PRIOR, _MASK, _LATENT = "/Add_output_0", "/Cast_2_output_0", "/Mul_7_output_0"
_WAVE = "/dec/Tanh_output_0"
_RHYTHM_CHANNELS = 2

# A symbol lasts 2 frames on average; a network that has lost its way would speak for minutes.
_MOST_FRAMES_PER_SYMBOL = 12
_MOST_FRAMES_BESIDES = 100
_TEST_FRAMES = 120
_SAME = 1e-3


@dataclass(frozen=True)
class PiperStyle:
    """How a voice speaks."""

    length: float
    """Above 1 it speaks slower."""
    noise: float
    """How much the sound varies."""
    rhythm_noise: float
    """How much the lengths of sounds vary."""


@dataclass(frozen=True)
class Prior:
    """The encoder's output for a phrase of ``p`` symbols."""

    mean: Array
    """``[channels, p]``"""
    spread: Array
    """``[channels, p]``, standard deviation."""
    frames: NDArray[np.int64]
    """``[p]``, how long each symbol lasts."""


class VoiceParts:
    """Loads a voice and runs its parts. Safe to use from one thread at a time.

    Attributes:
        hop: samples per frame.

    Raises:
        ModelLoadingError: the file is not a network of Piper with one speaker.
    """

    def __init__(self, path: Path, *, threads: int = 1) -> None:
        try:
            model = OnnxModel(path.read_bytes())
        except OSError as error:
            raise ModelLoadingError(f"{path} cannot be read: {error}") from error

        def load(inputs: list[PartInput], outputs: list[str]) -> Any:
            return open_session(path, threads=threads, part=model.part(inputs, outputs))

        self._encoder = load(
            [
                PartInput(_IDS, 2, "i64"),
                PartInput(_LENGTHS, 1, "i64"),
                PartInput(_SCALES, 1),
                PartInput(_RHYTHM, 3),
            ],
            [_MEAN, _LOG_SPREAD, _FRAMES],
        )
        self._flow = load([PartInput(_PRIOR, 3), PartInput(_MASK, 3)], [_LATENT])
        self._decoder = load([PartInput(_LATENT, 3)], [_WAVE])
        self.hop = self._check(path)

    def encode(
        self, ids: tuple[int, ...], style: PiperStyle, random: np.random.Generator, stop: Stop
    ) -> Prior:
        """Run the encoder; ``random`` draws the rhythm.

        Raises:
            StoppedError: the request was stopped.
            InferenceError: the run failed.
            InvalidModelOutputError: the result is not finite, or far too long.
        """
        given: dict[str, NDArray[Any]] = {
            _IDS: np.array([ids], np.int64),
            _LENGTHS: np.array([len(ids)], np.int64),
            # The first is the spread's, which is not used in this part.
            _SCALES: np.array([style.noise, style.length, style.rhythm_noise], np.float32),
            _RHYTHM: random.standard_normal((1, _RHYTHM_CHANNELS, len(ids)), np.float32),
        }
        mean, log_spread, frames = (output[0] for output in stop.run(self._encoder, given))
        if not all(np.isfinite(output).all() for output in (mean, log_spread, frames)):
            raise InvalidModelOutputError("the voice's encoder gave values that are not numbers")
        lengths = np.maximum(frames[0], 0).astype(np.int64)
        most = style.length * (_MOST_FRAMES_PER_SYMBOL * len(ids) + _MOST_FRAMES_BESIDES)
        if lengths.sum() > most:
            raise InvalidModelOutputError(f"{len(ids)} symbols would take {lengths.sum()} frames")
        return Prior(mean, np.exp(log_spread), lengths)

    def flow(self, prior: Array, stop: Stop) -> Array:
        """The latent frames of drawn ones; both f32 ``[channels, t]``."""
        mask = np.ones((1, 1, prior.shape[1]), np.float32)
        return np.asarray(stop.run(self._flow, {_PRIOR: prior[None], _MASK: mask})[0][0], np.float32)

    def decode(self, latent: Array, stop: Stop) -> Array:
        """The audio of latent frames ``[channels, t]``: f32 ``[t * hop]``, within -1 to 1."""
        return np.asarray(stop.run(self._decoder, {_LATENT: latent[None]})[0].reshape(-1), np.float32)

    def _check(self, path: Path) -> int:
        """The samples per frame, if pieces are what the whole would be."""
        random, stop = np.random.default_rng(0), Stop()
        first, last = _TEST_FRAMES // 2 - 4, _TEST_FRAMES // 2 + 4
        try:
            channels = self._encoder.get_outputs()[0].shape[1]
            if not isinstance(channels, int):
                raise ModelLoadingError(f"{path.name}: the size of its frames is not known")
            prior = random.standard_normal((channels, _TEST_FRAMES), np.float32)
            latent = self.flow(prior, stop)
            piece = self.flow(prior[:, first - FLOW_CONTEXT : last + FLOW_CONTEXT], stop)
            flow_error = np.abs(piece[:, FLOW_CONTEXT:-FLOW_CONTEXT] - latent[:, first:last]).max()
            wave = self.decode(latent, stop)
            hop = len(wave) // _TEST_FRAMES
            part = self.decode(latent[:, first - DECODER_CONTEXT : last + DECODER_CONTEXT], stop)
            inner = part[DECODER_CONTEXT * hop : -DECODER_CONTEXT * hop]
            wave_error = np.abs(inner - wave[first * hop : last * hop]).max()
        except (InferenceError, ValueError) as error:
            raise ModelLoadingError(f"{path.name} is not a voice of Piper: {error}") from error
        if not (flow_error < _SAME and wave_error < _SAME):
            raise ModelLoadingError(f"{path.name} cannot be run in pieces: they differ from the whole")
        return hop
