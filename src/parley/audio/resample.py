"""Changes the sample rate of audio that arrives in pieces."""

from __future__ import annotations

import numpy as np
import soxr
from numpy.typing import NDArray

_NOTHING = np.zeros(0, np.int16)


class Resampler:
    """Keeps its filter's state between pieces, so that their borders cannot be heard.

    Over a whole stream of ``n`` samples, :meth:`push` and :meth:`finish` together return
    ``round(n * to_rate / from_rate)`` samples. Equal rates pass through unchanged.

    Args:
        from_rate: Hertz of what comes in.
        to_rate: Hertz of what goes out.
    """

    def __init__(self, from_rate: int, to_rate: int) -> None:
        self.from_rate = from_rate
        self.to_rate = to_rate
        self._stream = (
            None
            if from_rate == to_rate
            else soxr.ResampleStream(from_rate, to_rate, 1, dtype="int16", quality="HQ")
        )

    def push(self, audio: NDArray[np.int16]) -> NDArray[np.int16]:
        """The part of the result that is certain so far; int16 [m], m may be 0."""
        return self._resample(audio, last=False)

    def finish(self) -> NDArray[np.int16]:
        """The rest of the result; nothing may be pushed afterwards."""
        return self._resample(_NOTHING, last=True)

    def _resample(self, audio: NDArray[np.int16], *, last: bool) -> NDArray[np.int16]:
        if self._stream is None:
            return audio
        resampled: NDArray[np.int16] = self._stream.resample_chunk(audio, last=last)
        return resampled
