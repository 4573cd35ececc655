"""Where the agent's voice goes: into the events, or past them."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Protocol

from parley_client.events import AgentAudio
from parley_gateway.audio.codecs import Encoder
from parley_gateway.doors.realtime.events import Emit
from parley_gateway.doors.realtime.formats import FORMATS


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
