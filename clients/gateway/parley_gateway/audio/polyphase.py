"""Changes the sample rate of live audio with next to no delay.

A library made for whole files (soxr) processes in blocks: of 20 ms pieces from 8 to 16 kHz it gives nothing
for 100 ms and then all at once. A conversation cannot wait for that; this filter answers every piece with all
of its samples, 2 to 3 ms late.
"""

from __future__ import annotations

from math import gcd

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

_ZERO_CROSSINGS = 17
"""Zero crossings of the filter's sinc on each side, at the lower of both rates: 2.1 ms at 8 kHz."""
_KAISER_BETA = 7.0
"""Mirror images are 70 dB below the signal."""
_CUTOFF = 0.92
"""Frequency at which the filter is at half its height, as a share of half the lower rate."""
_BLOCK = 4_096
"""Samples that are looked at at once."""
_FEW_PLACES = 8
"""Between two samples: with more it is faster to copy windows than to go through the places."""


class LiveResampler:
    """A windowed sinc, evaluated only where samples are needed; keeps what it needs between pieces."""

    def __init__(self, from_rate: int, to_rate: int) -> None:
        common = gcd(from_rate, to_rate)
        self._up, self._down = to_rate // common, from_rate // common
        self._phases = _filter(self._up, self._down)
        self._taps = self._phases.shape[1]
        passes = from_rate == to_rate
        self.delay_ms = 0.0 if passes else 1000 * (self._taps * self._up - 1) / 2 / (from_rate * self._up)
        """By how much the result is late (milliseconds)."""
        self._passes = passes
        self.reset()

    def reset(self) -> None:
        """Forget what came before: other audio follows."""
        self._past = np.zeros(self._taps - 1, np.float32)
        self._next = 0
        """Where the next result is, in steps of 1 / up of a sample after the past."""

    def push(self, samples: NDArray[np.int16]) -> NDArray[np.int16]:
        """The result of a piece: int16 [n * up / down], rounded either way.

        However long the piece is, little more than its result is held in memory.
        """
        if self._passes or not len(samples):
            return samples
        parts = [self._convert(samples[at : at + _BLOCK]) for at in range(0, len(samples), _BLOCK)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _convert(self, samples: NDArray[np.int16]) -> NDArray[np.int16]:
        window = np.concatenate([self._past, samples.astype(np.float32)])
        around = sliding_window_view(window, self._taps)
        at = np.arange(self._next, len(samples) * self._up, self._down)
        self._next += len(at) * self._down - len(samples) * self._up
        self._past = window[len(window) - self._taps + 1 :]
        sample, place = np.divmod(at, self._up)
        result = np.empty(len(at), np.float32)
        if self._up > _FEW_PLACES:
            np.einsum("nt,nt->n", around[sample], self._phases[place], out=result)
        else:
            # Every `up` results the same place comes again, `down` samples further: no window is copied.
            for first in range(min(self._up, len(at))):
                one, count = slice(first, None, self._up), len(sample[first :: self._up])
                windows = around[sample[first] :: self._down][:count]
                np.einsum("nt,t->n", windows, self._phases[place[first]], out=result[one])
        return np.clip(np.rint(result), -32_768, 32_767).astype(np.int16)


def _filter(up: int, down: int) -> NDArray[np.float32]:
    """Shape [up, taps], in the order of the samples: one filter for each place between two samples."""
    widest = max(up, down)
    taps = -(-2 * _ZERO_CROSSINGS * widest // up)
    length = taps * up
    time = np.arange(length) - (length - 1) / 2
    prototype = np.sinc(time * _CUTOFF / widest) * np.kaiser(length, _KAISER_BETA)
    phases = prototype.reshape(taps, up).T
    # Each place alone lets a constant pass unchanged, or it would hum at the rate of the places.
    phases /= phases.sum(axis=1, keepdims=True)
    return np.ascontiguousarray(phases[:, ::-1], np.float32)
