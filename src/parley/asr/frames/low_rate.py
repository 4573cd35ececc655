"""The front end of FunASR's models: Kaldi's filter bank, stacked to fewer frames, and normalised."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from parley.asr.frames.network import Metadata
from parley.asr.pipeline.segmentation import FULL_SCALE
from parley.audio.fbank import FbankOptions, KaldiFbank, stack_frames
from parley.errors import ModelLoadingError

BANDS = 80


class LowRateFeatures:
    """What the metadata of a file says of its front end.

    Args:
        metadata: has the keys ``lfr_window_size``, ``lfr_window_shift``, ``neg_mean`` and ``inv_stddev``.
        full_scale: of samples, as the network takes them.

    Raises:
        ModelLoadingError: one is missing, or they do not go together.
    """

    def __init__(self, metadata: Metadata, *, full_scale: float = float(FULL_SCALE)) -> None:
        self._window = metadata.integer("lfr_window_size", minimum=1)
        self._shift = metadata.integer("lfr_window_shift", minimum=1)
        self._offset, self._factor = metadata.numbers("neg_mean"), metadata.numbers("inv_stddev")
        self.size = self._window * BANDS
        """Features of a frame."""
        self.frame_ms = 10 * self._shift
        if {len(self._offset), len(self._factor)} != {self.size}:
            raise ModelLoadingError(
                f"neg_mean and inv_stddev are of {len(self._offset)} and {len(self._factor)} features; "
                f"{self._window} frames of {BANDS} bands are {self.size}"
            )
        self._fbank = KaldiFbank(FbankOptions(BANDS, window="hamming", full_scale=full_scale))

    def __call__(self, audio: NDArray[np.float32]) -> NDArray[np.float32]:
        """The features of a recording.

        Args:
            audio: f32 ``[n]`` within ±1, 16 kHz, at least 400 samples.

        Returns:
            f32 ``[frames, size]``.
        """
        stacked = stack_frames(self._fbank.compute(audio), self._window, self._shift)
        return np.asarray((stacked + self._offset) * self._factor, np.float32)
