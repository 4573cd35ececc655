"""Whether a sound is what the loudspeaker has just played.

Voices have pitches and vowels in common, so that any two are a little alike. Measured with voices of Kokoro
and Piper (300 pairs each; 99 % of all): 0.13 s of another voice reach 0.58, 0.25 s 0.44, half a second 0.21.
Of 54 echoes in calls of the simulator, 18 and 30 dB below what was played and in a small room, none was under
0.6; those of a room with much reverberation lie at 0.2 to 0.36.

An agent that falls silent at the first sound of its own echo leaves little of it: often less than 0.2 s, with
silence around it that was never played. So the silence at either end does not count.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import soxr
from numpy.typing import NDArray

SHORTEST_S = 0.12
"""Less sound than this says nothing."""
_NEEDED = ((0.8, 0.32), (0.4, 0.45), (0.2, 0.55), (SHORTEST_S, 0.6))
"""Seconds of sound, and the likeness from which it is an echo."""
_FRAME_S = 0.01
_SILENCE = 0.02
"""Share of the power of the loudest frame (-17 dB)."""
_AROUND_S = 0.3
"""Silence by which the recorded audio may be longer than the played, before it and after it."""
_EMPHASIS = np.float32(0.95)


class EchoDetector:
    """Remembers what was sent to the client, and finds it again in what comes back.

    Args:
        sample_rate: of the audio that comes back (hertz).
        memory_s: audio that is remembered: what the client has in its queue, what is on the way, and what is
            compared.
    """

    def __init__(self, sample_rate: int, memory_s: float = 4.0) -> None:
        self._sample_rate = sample_rate
        self._memory_s = memory_s
        self._sent: deque[NDArray[np.int16]] = deque()
        self._sent_rate = sample_rate
        self._length = 0

    def sent(self, samples: NDArray[np.int16], sample_rate: int) -> None:
        """Take what is sent: i16 ``[n]``, always at the same rate (hertz)."""
        self._sent_rate = sample_rate
        self._sent.append(samples)
        self._length += len(samples)
        while self._length - len(self._sent[0]) >= self._memory_s * sample_rate:
            self._length -= len(self._sent.popleft())

    def recognises(self, heard: NDArray[np.int16]) -> bool:
        """Whether this is an echo: i16 ``[n]``, best the last second of the user's audio."""
        sound = _without_silence(heard, round(_FRAME_S * self._sample_rate))
        length_s = len(sound) / self._sample_rate
        needed = next((likeness for least_s, likeness in _NEEDED if length_s >= least_s), None)
        if needed is None or not self._sent:
            return False
        played = soxr.resample(np.concatenate(self._sent), self._sent_rate, self._sample_rate)
        # What was heard may begin a moment before what was played, and end after it.
        played = np.pad(played, round(_AROUND_S * self._sample_rate))
        return likeness(sound, played) >= needed


def _without_silence(samples: NDArray[np.int16], frame: int) -> NDArray[np.int16]:
    """From the first loud frame to the last."""
    frames = samples[: len(samples) // frame * frame].reshape(-1, frame).astype(np.float32)
    powers = np.mean(frames**2, axis=1)
    (loud,) = np.nonzero(powers > _SILENCE * powers.max(initial=0.0))
    return samples[loud[0] * frame : (loud[-1] + 1) * frame] if len(loud) else samples[:0]


def likeness(heard: NDArray[np.int16], played: NDArray[np.int16]) -> float:
    """How much of ``heard`` is a delayed and weakened copy of a part of ``played``, 0-1.

    The highest normalised cross-correlation over all delays, after a first-order pre-emphasis, which makes
    voices that only have the same pitch less alike.

    Args:
        heard: i16 ``[n]``; some tenths of a second are needed.
        played: i16 ``[m]`` at the same sample rate; shorter than ``heard``: 0.
    """
    sound, reference = _emphasised(heard), _emphasised(played)
    count = len(sound)
    energy = float(np.dot(sound, sound))
    if count == 0 or len(reference) < count or energy == 0.0:
        return 0.0
    size = 1 << (len(reference) + count - 1).bit_length()
    products = np.fft.irfft(np.fft.rfft(reference, size) * np.conj(np.fft.rfft(sound, size)), size)
    products = products[: len(reference) - count + 1]
    sums = np.concatenate([[0.0], np.cumsum(reference.astype(np.float64) ** 2)])
    energies = sums[count:] - sums[:-count]
    # Where next to nothing was played, there is nothing to be an echo of.
    loud = energies > 1e-4 * sums[-1] * count / len(reference)
    if not loud.any():
        return 0.0
    return float(np.max(np.abs(products[loud]) / np.sqrt(energies[loud] * energy)))


def _emphasised(samples: NDArray[np.int16]) -> NDArray[np.float32]:
    sound = samples.astype(np.float32)
    return sound[1:] - _EMPHASIS * sound[:-1]
