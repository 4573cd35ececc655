"""Where the agent's voice goes: into the events, or past them."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from parley_client.events import AgentAudio
from parley_gateway.apis.realtime.server_events import ClientEventError, Emit
from parley_gateway.audio.codecs import AudioFormat, AudioStreamDecoder, Encoder


@dataclass(frozen=True)
class Part:
    """A content part of an answer, as events name it."""

    response_id: str
    item_id: str
    output_index: int
    agent_response_id: str
    content_index: int = 0


class Speaker(Protocol):
    """Takes the agent's voice."""

    def play(self, part: Part, audio: AgentAudio) -> None:
        """The next audio of a part."""
        ...

    def finish(self) -> None:
        """The part has no more audio."""
        ...

    def cut(self) -> None:
        """Play nothing more."""
        ...

    def over(self, response_id: str) -> None:
        """The client was told that this response is over."""
        ...

    def pause(self) -> None:
        """Stop for now, and keep what was not played."""
        ...

    def resume(self) -> None:
        """Play on."""
        ...


class EventSpeaker:
    """Sends audio as events; what has been sent cannot be taken back, and clients flush it themselves.

    Args:
        emit: Sends server events.
        output_format: Says which of OpenAI's formats the client wants now.
    """

    def __init__(self, emit: Emit, output_format: FormatOf) -> None:
        self._emit = emit
        self._format = output_format
        self._encoder: Encoder | None = None
        self._item_id = ""

    def play(self, part: Part, audio: AgentAudio) -> None:
        """Send a piece."""
        if self._encoder is None or self._item_id != part.item_id:
            self._encoder, self._item_id = Encoder(FORMATS[self._format()], audio.sample_rate), part.item_id
        data = self._encoder.encode(audio.samples)
        if data:
            self._emit(
                "response.output_audio.delta",
                response_id=part.response_id,
                item_id=part.item_id,
                output_index=part.output_index,
                content_index=part.content_index,
                delta=base64.b64encode(data).decode(),
            )

    def finish(self) -> None:
        """What follows belongs to another part."""
        self._encoder = None

    def cut(self) -> None:
        """There is nothing here that could be cut."""

    def over(self, response_id: str) -> None:
        """Nobody waits for it."""

    def pause(self) -> None:
        """The agent does not ask for it."""

    def resume(self) -> None:
        """Nor for this."""


class FormatOf(Protocol):
    """Says which format the client wants now."""

    def __call__(self) -> str:
        """OpenAI's name of it."""
        ...


FORMATS: Mapping[str, AudioFormat] = {
    "audio/pcm": AudioFormat("pcm16", 24_000),
    "audio/pcmu": AudioFormat("ulaw", 8_000),
    "audio/pcma": AudioFormat("alaw", 8_000),
}
"""By OpenAI's name."""
_BLOCK = 65_536
"""Base64 that is decoded at once: a second of PCM (characters, a multiple of four)."""


class AudioDecoder:
    """Reads the client's audio.

    Args:
        name: OpenAI's name of its format.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._decoder = AudioStreamDecoder(FORMATS[name])
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


def _not_base64() -> ClientEventError:
    return ClientEventError("Invalid 'audio': it is not base64.", code="invalid_value", param="audio")
