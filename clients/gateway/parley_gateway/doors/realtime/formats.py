"""OpenAI's forms of audio."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from parley_gateway.audio.codecs import AudioFormat, Decoder
from parley_gateway.doors.realtime.refusals import Refusal

FORMATS: Mapping[str, AudioFormat] = {
    "audio/pcm": AudioFormat("pcm16", 24_000),
    "audio/pcmu": AudioFormat("ulaw", 8_000),
    "audio/pcma": AudioFormat("alaw", 8_000),
}
"""By OpenAI's name."""


class Listening:
    """Reads the client's audio.

    Args:
        name: OpenAI's name of its format.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._decoder = Decoder(FORMATS[name])
        self._bytes_per_s = FORMATS[name].bytes_per_s

    def read(self, encoded: str) -> tuple[NDArray[np.int16], float]:
        """The next piece, in base64.

        Returns:
            Mono audio at 16 kHz, int16 [n], and how long the piece lasts (milliseconds).

        Raises:
            Refusal: it is not base64.
        """
        try:
            raw = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError) as error:
            message = "Invalid 'audio': it is not base64."
            raise Refusal(message, code="invalid_value", param="audio") from error
        return self._decoder.decode(raw), 1000 * len(raw) / self._bytes_per_s
