"""How the audio of one stream is written."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from parley import protocol
from parley_gateway.audio.codecs import AudioFormat, AudioStreamDecoder, Encoder, Encoding

G711_RATE = 8_000
"""Of µ-law and A-law, both ways (Hz)."""


class SessionWire:
    """Between a stream's binary messages and the call.

    Args:
        encoding: Of the messages: the call's own PCM16, or G.711.
    """

    def __init__(self, encoding: Encoding) -> None:
        self.encoding = encoding
        self.input_sample_rate = protocol.INPUT_SAMPLE_RATE if encoding == "pcm16" else G711_RATE
        """Of messages to the gateway (Hz)."""
        form = AudioFormat(encoding, self.input_sample_rate)
        self._decoder = None if encoding == "pcm16" else AudioStreamDecoder(form)
        self._encoder = None if encoding == "pcm16" else Encoder(form, G711_RATE)

    def read(self, message: bytes) -> Iterable[bytes | NDArray[np.int16]]:
        """What the agent hears, in order."""
        return [message] if self._decoder is None else self._decoder.pieces(message)

    def write(self, samples: NDArray[np.int16]) -> bytes:
        """The message for a piece of the agent's speech: of 8 kHz where the encoding is G.711."""
        if self._encoder is None:
            return samples.astype("<i2", copy=False).tobytes()
        return self._encoder.encode(samples)
