"""PCM16: bytes to samples, lengths, and another sample rate for audio that arrives in pieces."""

from __future__ import annotations

import numpy as np
import soxr
from numpy.typing import NDArray

from parley.errors import InvalidAudioError
from parley.protocol import INPUT_SAMPLE_RATE, MAX_CHUNK_MS

BYTES_PER_SAMPLE = 2
_NOTHING = np.zeros(0, np.int16)
MAX_CHUNK_BYTES = MAX_CHUNK_MS * INPUT_SAMPLE_RATE // 1000 * BYTES_PER_SAMPLE


def decode_pcm16(raw: bytes) -> NDArray[np.int16]:
    """Samples of one chunk of mono PCM16 little endian at 16 kHz; int16 [n], read-only.

    Raises:
        InvalidAudioError: an odd number of bytes, or more than :data:`MAX_CHUNK_MS` of audio.
    """
    if len(raw) % BYTES_PER_SAMPLE:
        raise InvalidAudioError(f"audio chunk of {len(raw)} bytes; samples have two bytes each")
    if len(raw) > MAX_CHUNK_BYTES:
        length = samples_to_ms(len(raw) // BYTES_PER_SAMPLE, INPUT_SAMPLE_RATE)
        raise InvalidAudioError(f"audio chunk of {length:.0f} ms; at most {MAX_CHUNK_MS} ms are allowed")
    return np.frombuffer(raw, dtype="<i2").astype(np.int16, copy=False)


def samples_to_ms(samples: float, sample_rate: int) -> float:
    """Milliseconds that ``samples`` last at ``sample_rate`` hertz."""
    return samples * 1000 / sample_rate


class Resampler:
    """Keeps its filter's state between pieces, so that their borders are inaudible.

    Over a whole stream of ``n`` samples, :meth:`push` and :meth:`finish` together return
    ``round(n * to_rate / from_rate)`` samples. Equal rates pass through unchanged.
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
