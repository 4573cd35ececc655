"""Audio in events: the agent's output, and the decoder of the client's input."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parley_client.events import AgentAudio
from parley_gateway.apis.realtime.server_events import ClientEventError, Emit
from parley_gateway.audio.codecs import AudioFormat, AudioStreamDecoder, Encoder

FORMATS: Mapping[str, AudioFormat] = {
    "audio/pcm": AudioFormat("pcm16", 24_000),
    "audio/pcmu": AudioFormat("ulaw", 8_000),
    "audio/pcma": AudioFormat("alaw", 8_000),
}
"""By OpenAI's name."""
_BLOCK_CHARS = 65_536
"""Base64 that is decoded at once: a second of PCM (a multiple of four)."""


@dataclass(frozen=True)
class Part:
    """A content part of a response."""

    response_id: str
    item_id: str
    output_index: int
    content_index: int = 0

    @property
    def place(self) -> dict[str, Any]:
        """The fields of events that name the part."""
        return dict(vars(self))


class AudioOutput:
    """Outputs the agent's audio. What an output cannot do has no effect."""

    def play(self, part: Part, audio: AgentAudio) -> None:
        """Append audio of a part."""
        raise NotImplementedError

    def finish(self) -> None:
        """End the audio of the current part."""
        raise NotImplementedError

    def clear(self) -> None:
        """Discard what was not played."""

    def on_response_done(self, response_id: str) -> None:
        """``response.done`` was sent."""

    def pause(self) -> None:
        """Stop playback and keep what was not played."""

    def resume(self) -> None:
        """Continue playback."""


class EventSpeaker(AudioOutput):
    """Sends audio as events, in the format that ``output_format`` returns; clients play and discard it."""

    def __init__(self, emit: Emit, output_format: Callable[[], str]) -> None:
        self._emit = emit
        self._format = output_format
        self._encoder: Encoder | None = None
        self._item_id = ""

    def play(self, part: Part, audio: AgentAudio) -> None:
        """Send audio of a part."""
        if self._encoder is None or self._item_id != part.item_id:
            self._encoder, self._item_id = Encoder(FORMATS[self._format()], audio.sample_rate), part.item_id
        data = self._encoder.encode(audio.samples)
        if data:
            self._emit("response.output_audio.delta", **part.place, delta=base64.b64encode(data).decode())

    def finish(self) -> None:
        """End the audio of the current part."""
        self._encoder = None


class AudioDecoder:
    """Decodes the client's audio; ``name`` is OpenAI's name of its format."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._decoder = AudioStreamDecoder(FORMATS[name])
        self._bytes_per_s = FORMATS[name].bytes_per_s

    async def read(self, encoded: str) -> AsyncGenerator[tuple[NDArray[np.int16], float], None]:
        """Decode base64 in pieces, between which other tasks may run.

        Yields:
            Mono audio at 16 kHz, int16 [n], and the length of the piece (milliseconds).

        Raises:
            ClientEventError: it is not base64; nothing of it is decoded then.
        """
        blocks = []
        for at in range(0, len(encoded), _BLOCK_CHARS):
            block = encoded[at : at + _BLOCK_CHARS]
            blocks.append(_decode(block, is_last=at + _BLOCK_CHARS >= len(encoded)))
            await asyncio.sleep(0)
        for data in blocks:
            yield self._decoder.decode(data), 1000 * len(data) / self._bytes_per_s
            await asyncio.sleep(0)


def _decode(block: str, *, is_last: bool) -> bytes:
    if is_last or not block.endswith("="):
        with suppress(binascii.Error, ValueError):
            return base64.b64decode(block, validate=True)
    raise ClientEventError("Invalid 'audio': it is not base64.", param="audio")
