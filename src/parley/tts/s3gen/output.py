"""The last step: 24 kHz floats to PCM of the listener's rate."""

from __future__ import annotations

import numpy as np
import soxr
from numpy.typing import NDArray

from parley.tts.s3gen.hift import SAMPLE_RATE
from parley.tts.watermark import WatermarkStream

_SILENCE = SAMPLE_RATE // 50
"""Samples at the beginning that are silenced, and as many that are faded in.

As upstream does: the end of the reference speech can be heard there.
"""


class PcmOutput:
    """Keeps the filter's state between chunks. Floats until the end: soxr dithers integers.

    Args:
        rate: hertz of what comes out.
        mark: adds a watermark; None: there is none.
    """

    def __init__(self, rate: int, mark: WatermarkStream | None = None) -> None:
        self.rate = rate
        self._mark = mark
        self.samples = 0
        """Samples given so far."""
        self._received = 0
        self._resampler = (
            None
            if rate == SAMPLE_RATE
            else soxr.ResampleStream(SAMPLE_RATE, rate, 1, dtype="float32", quality="HQ")
        )

    def push(self, audio: NDArray[np.float32], *, last: bool) -> NDArray[np.int16]:
        """The PCM that is certain so far; i16 ``[m]``, m may be 0."""
        faded = audio * fade_in(self._received, len(audio))
        self._received += len(audio)
        if self._mark is not None:
            faded = self._mark.push(faded, last=last)
        if self._resampler is not None:
            faded = self._resampler.resample_chunk(faded, last=last)
        self.samples += len(faded)
        pcm: NDArray[np.int16] = np.round(np.clip(faded, -1.0, 1.0) * 32767.0).astype(np.int16)
        return pcm


def fade_in(first: int, count: int) -> NDArray[np.float32]:
    """Gain of samples ``first`` ... of an utterance, f32 ``[count]``."""
    # The first step of the ramp is 0 and the last is 1.
    ramp = (np.arange(first, first + count) - _SILENCE) / (_SILENCE - 1)
    gain: NDArray[np.float32] = ((1.0 - np.cos(np.pi * np.clip(ramp, 0.0, 1.0))) / 2.0).astype(np.float32)
    return gain
