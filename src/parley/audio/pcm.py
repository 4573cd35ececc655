"""Raw PCM16 bytes as samples and back."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from parley.errors import InvalidAudioError
from parley.protocol import INPUT_SAMPLE_RATE, MAX_CHUNK_MS

BYTES_PER_SAMPLE = 2
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
