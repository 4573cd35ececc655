"""From the audio of a client to that of the agent, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from parley import protocol
from parley.errors import UnsupportedSampleRateError
from parley_gateway.audio.g711 import decode_alaw, decode_ulaw, encode_alaw, encode_ulaw
from parley_gateway.audio.polyphase import LiveResampler

Encoding: TypeAlias = Literal["pcm16", "ulaw", "alaw"]
"""Mono PCM of 16 bits, little endian; G.711 µ-law; G.711 A-law."""
SAMPLE_RATES = (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
"""Those that a client may use (Hz)."""


@dataclass(frozen=True, slots=True)
class AudioFormat:
    """What a client sends or wants.

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
    """Turns a client's bytes into what the agent hears; keeps its place between pieces of any size.

    Args:
        form: What the client sends.
        to_rate: Of the result (Hz).
    """

    def __init__(self, form: AudioFormat, to_rate: int = protocol.INPUT_SAMPLE_RATE) -> None:
        self._read = _READERS[form.encoding]
        self._sample_bytes = 2 if form.encoding == "pcm16" else 1
        self._resampler = LiveResampler(form.sample_rate, to_rate)
        self._half_sample = b""
        self._piece_bytes = form.bytes_per_s
        self.delay_ms = self._resampler.delay_ms
        """By how much the result is late (milliseconds)."""

    def pieces(self, data: bytes) -> Iterator[NDArray[np.int16]]:
        """What :meth:`decode` gives, a second at a time: nobody must wait for a long message of another."""
        for at in range(0, len(data), self._piece_bytes):
            yield self.decode(data[at : at + self._piece_bytes])

    def decode(self, data: bytes) -> NDArray[np.int16]:
        """Samples of mono PCM, int16 [n]; half a sample waits for its other half."""
        raw = self._half_sample + data
        whole = len(raw) - len(raw) % self._sample_bytes
        self._half_sample = raw[whole:]
        return self._resampler.push(self._read(raw[:whole]))


class Encoder:
    """Turns the agent's speech into a client's bytes.

    Args:
        form: What the client wants.
        from_rate: Of the speech (Hz).
    """

    def __init__(self, form: AudioFormat, from_rate: int) -> None:
        self._write = _WRITERS[form.encoding]
        self._resampler = LiveResampler(from_rate, form.sample_rate)
        self.delay_ms = self._resampler.delay_ms
        """By how much the result is late (milliseconds)."""

    def encode(self, samples: NDArray[np.int16]) -> bytes:
        """The bytes of a piece; int16 [n]."""
        return self._write(self._resampler.push(samples))

    def reset(self) -> None:
        """Other speech follows: what was before must not be heard in it, as after an interruption."""
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
