"""OpenAI's forms of audio."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncIterator, Mapping

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
_BLOCK = 65_536
"""Base64 that is decoded at once: a second of PCM (characters, a multiple of four)."""


class Listening:
    """Reads the client's audio.

    Args:
        name: OpenAI's name of its format.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._decoder = Decoder(FORMATS[name])
        self._bytes_per_s = FORMATS[name].bytes_per_s

    async def read(self, encoded: str) -> AsyncIterator[tuple[NDArray[np.int16], float]]:
        """The next audio, in base64: in pieces, between which others may go on.

        Yields:
            Mono audio at 16 kHz, int16 [n], and how long the piece lasts (milliseconds).

        Raises:
            Refusal: it is not base64; nothing of it was read then.
        """
        blocks = []
        for at in range(0, len(encoded), _BLOCK):
            blocks.append(_decode(encoded[at : at + _BLOCK], is_last=at + _BLOCK >= len(encoded)))
            await asyncio.sleep(0)
        for block in blocks:
            yield self._decoder.decode(block), 1000 * len(block) / self._bytes_per_s
            await asyncio.sleep(0)


def _decode(block: str, *, is_last: bool) -> bytes:
    try:
        raw = base64.b64decode(block, validate=True)
    except (binascii.Error, ValueError) as error:
        raise _not_base64() from error
    if not is_last and len(raw) < _BLOCK // 4 * 3:
        raise _not_base64()  # there is padding in the middle
    return raw


def _not_base64() -> Refusal:
    return Refusal("Invalid 'audio': it is not base64.", code="invalid_value", param="audio")
