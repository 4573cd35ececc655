"""Audio encodings of clients (PCM, G.711) to and from the agent's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from parley import protocol
from parley.errors import UnsupportedSampleRateError
from parley_gateway.audio.polyphase import LiveResampler

# G.711 (ITU-T Recommendation G.711, tables 1a to 2b). Both laws are piecewise linear: a sign, three bits for
# one of eight segments, each twice as steep as the one before, and four bits within the segment. Every
# function is one look-up in a table that is made once.
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

Encoding: TypeAlias = Literal["pcm16", "ulaw", "alaw"]
"""Mono PCM of 16 bits, little endian; G.711 µ-law; G.711 A-law."""
SAMPLE_RATES = (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
"""Those that a client may use (Hz)."""


@dataclass(frozen=True, slots=True)
class AudioFormat:
    """An audio format of a client.

    Raises:
        UnsupportedSampleRateError: the rate is none of :data:`SAMPLE_RATES`.
    """

    encoding: Encoding = "pcm16"
    sample_rate: int = protocol.INPUT_SAMPLE_RATE
    """Hertz."""

    def __post_init__(self) -> None:
        if self.sample_rate not in SAMPLE_RATES:
            known = ", ".join(map(str, SAMPLE_RATES))
            raise UnsupportedSampleRateError(f"{self.sample_rate} Hz is not supported; one of {known} is")

    @property
    def bytes_per_s(self) -> int:
        """Bytes of a second."""
        return self.sample_rate * (2 if self.encoding == "pcm16" else 1)

    @property
    def agent_rate(self) -> int:
        """What the agent should speak in (``Start.output_sample_rate``): the same, or the next above."""
        rates = protocol.OUTPUT_SAMPLE_RATES
        return self.sample_rate if self.sample_rate in rates else min(rates, key=self._distance)

    def _distance(self, rate: int) -> tuple[bool, int]:
        return rate < self.sample_rate, abs(rate - self.sample_rate)


class AudioStreamDecoder:
    """Turns a client's bytes into what the agent hears; keeps its place between pieces of any size."""

    def __init__(self, form: AudioFormat, to_rate: int = protocol.INPUT_SAMPLE_RATE) -> None:
        self._read = _READERS[form.encoding]
        self._sample_bytes = 2 if form.encoding == "pcm16" else 1
        self._resampler = LiveResampler(form.sample_rate, to_rate)
        self._half_sample = b""
        self._piece_bytes = form.bytes_per_s
        self.delay_ms = self._resampler.delay_ms
        """By how much the result is late (milliseconds)."""

    def pieces(self, data: bytes) -> Iterator[NDArray[np.int16]]:
        """:meth:`decode` in pieces of one second, so that a long message does not hold the event loop."""
        for at in range(0, len(data), self._piece_bytes):
            yield self.decode(data[at : at + self._piece_bytes])

    def decode(self, data: bytes) -> NDArray[np.int16]:
        """Samples of mono PCM, int16 [n]; half a sample waits for its other half."""
        raw = self._half_sample + data
        whole = len(raw) - len(raw) % self._sample_bytes
        self._half_sample = raw[whole:]
        return self._resampler.push(self._read(raw[:whole]))


class Encoder:
    """Turns the agent's speech into a client's bytes."""

    def __init__(self, form: AudioFormat, from_rate: int) -> None:
        self._write = _WRITERS[form.encoding]
        self._resampler = LiveResampler(from_rate, form.sample_rate)
        self.delay_ms = self._resampler.delay_ms
        """By how much the result is late (milliseconds)."""

    def encode(self, samples: NDArray[np.int16]) -> bytes:
        """The bytes of a piece; int16 [n]."""
        return self._write(self._resampler.push(samples))

    def finish(self) -> bytes:
        """Nothing: no audio is kept back."""
        return b""

    def reset(self) -> None:
        """Reset the filters: other speech follows, as after an interruption."""
        self._resampler.reset()


def _read_pcm16(raw: bytes) -> NDArray[np.int16]:
    return np.frombuffer(raw, "<i2").astype(np.int16, copy=False)


def _write_pcm16(samples: NDArray[np.int16]) -> bytes:
    return samples.astype("<i2", copy=False).tobytes()


_READERS: dict[Encoding, Callable[[bytes], NDArray[np.int16]]] = {
    "pcm16": _read_pcm16,
    "ulaw": decode_ulaw,
    "alaw": decode_alaw,
}
_WRITERS: dict[Encoding, Callable[[NDArray[np.int16]], bytes]] = {
    "pcm16": _write_pcm16,
    "ulaw": encode_ulaw,
    "alaw": encode_alaw,
}
