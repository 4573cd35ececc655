"""The user's track: what arrives of it, as the agent hears it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import numpy as np
from aiortc import MediaStreamTrack
from aiortc.mediastreams import MediaStreamError
from av import AudioFrame, AudioResampler
from numpy.typing import NDArray

from parley.protocol import INPUT_SAMPLE_RATE

_LONGEST_GAP_S = 1.0
"""A longer one is a new beginning of the sender's clock, not lost packets."""


async def heard(track: MediaStreamTrack) -> AsyncIterator[NDArray[np.int16]]:
    """Pieces of mono audio at 16 kHz, int16 [n], until the track ends; lost packets become silence."""
    resampler = AudioResampler(format="s16", layout="mono", rate=INPUT_SAMPLE_RATE)
    due: int | None = None
    while True:
        try:
            frame = await track.recv()
        except MediaStreamError:
            return
        assert isinstance(frame, AudioFrame)
        lost = _lost_samples(frame, due)
        if lost:
            yield np.zeros(lost, np.int16)
        if frame.pts is not None:
            due = frame.pts + frame.samples
        for piece in resampler.resample(frame):
            yield piece.to_ndarray().reshape(-1).astype(np.int16, copy=False)


def _lost_samples(frame: AudioFrame, due: int | None) -> int:
    """Samples at 16 kHz between the end of the last frame and the beginning of this one."""
    if due is None or frame.pts is None or frame.pts <= due:
        return 0
    lost_s = (frame.pts - due) / frame.sample_rate
    return round(lost_s * INPUT_SAMPLE_RATE) if lost_s <= _LONGEST_GAP_S else 0
