"""G.711: the telephone's eight bits per sample (ITU-T Recommendation G.711, tables 1a to 2b).

Both laws are piecewise linear: a sign, three bits for one of eight segments of which each is twice as steep
as the one before, and four bits within the segment. Every function is one look-up in a table that is made
once, so that a piece of audio costs a copy.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_SEGMENTS = 8
_ULAW_BIAS = 33
"""Added to 14-bit magnitudes, so that every segment begins at a power of two."""
_ULAW_CLIP = 8158
"""From here on 14-bit magnitudes share the last code."""


def decode_ulaw(coded: bytes | NDArray[np.uint8]) -> NDArray[np.int16]:
    """Samples of µ-law bytes.

    Returns:
        int16 [n], one sample per byte, at most ±32124.
    """
    return _ULAW_TO_PCM[_as_codes(coded)]


def decode_alaw(coded: bytes | NDArray[np.uint8]) -> NDArray[np.int16]:
    """Samples of A-law bytes.

    Returns:
        int16 [n], one sample per byte, at most ±32256.
    """
    return _ALAW_TO_PCM[_as_codes(coded)]


def encode_ulaw(samples: NDArray[np.int16]) -> bytes:
    """µ-law bytes of samples (int16 [n]), one byte per sample; silence is 0xFF."""
    return _PCM_TO_ULAW[samples.view(np.uint16)].tobytes()


def encode_alaw(samples: NDArray[np.int16]) -> bytes:
    """A-law bytes of samples (int16 [n]), one byte per sample; silence is 0xD5."""
    return _PCM_TO_ALAW[samples.view(np.uint16)].tobytes()


def _as_codes(coded: bytes | NDArray[np.uint8]) -> NDArray[np.uint8]:
    return coded if isinstance(coded, np.ndarray) else np.frombuffer(coded, np.uint8)


def _ulaw_decoder() -> NDArray[np.int16]:
    code = ~np.arange(256, dtype=np.uint8)  # all bits are sent inverted
    segment, step = (code >> 4 & 7).astype(np.int32), (code & 15).astype(np.int32)
    magnitude = (2 * step + _ULAW_BIAS << segment) - _ULAW_BIAS
    return np.where(code & 0x80, -4 * magnitude, 4 * magnitude).astype(np.int16)


def _alaw_decoder() -> NDArray[np.int16]:
    code = np.arange(256, dtype=np.uint8) ^ 0x55  # every other bit is sent inverted
    segment, step = (code >> 4 & 7).astype(np.int32), (code & 15).astype(np.int32)
    first = 2 * step + 1
    magnitude = np.where(segment == 0, first, first + 32 << np.maximum(segment - 1, 0))
    return np.where(code & 0x80, 8 * magnitude, -8 * magnitude).astype(np.int16)


def _all_samples(bits: int) -> NDArray[np.int32]:
    """Every int16 in the order of its bit pattern, rounded down to as many bits."""
    return np.arange(1 << 16, dtype=np.uint16).view(np.int16).astype(np.int32) >> 16 - bits


def _segment_of(magnitude: NDArray[np.int32], first_end: int) -> NDArray[np.int32]:
    """The segment of each magnitude; the ends of the segments are doubled from the first one's."""
    ends = first_end << np.arange(_SEGMENTS)
    return np.searchsorted(ends, magnitude, side="right").astype(np.int32)


def _ulaw_encoder() -> NDArray[np.uint8]:
    sample = _all_samples(14)
    magnitude = np.minimum(np.abs(sample), _ULAW_CLIP) + _ULAW_BIAS
    segment = _segment_of(magnitude, 64)
    code = segment << 4 | magnitude >> segment + 1 & 15
    inverted: NDArray[np.int32] = code ^ np.where(sample < 0, 0x7F, 0xFF)
    return inverted.astype(np.uint8)


def _alaw_encoder() -> NDArray[np.uint8]:
    sample = _all_samples(13)
    magnitude = np.where(sample < 0, ~sample, sample)
    segment = _segment_of(magnitude, 32)
    code = segment << 4 | magnitude >> np.maximum(segment, 1) & 15
    inverted: NDArray[np.int32] = code ^ np.where(sample < 0, 0x55, 0xD5)
    return inverted.astype(np.uint8)


_ULAW_TO_PCM = _ulaw_decoder()
_ALAW_TO_PCM = _alaw_decoder()
_PCM_TO_ULAW = _ulaw_encoder()
_PCM_TO_ALAW = _alaw_encoder()
