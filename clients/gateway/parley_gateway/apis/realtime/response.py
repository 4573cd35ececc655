"""One response: how an answer is told, event by event."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import msgspec

from parley import protocol
from parley_client.events import AgentAudio
from parley_gateway.apis.realtime.items import Items, Spoken, StoredItem
from parley_gateway.apis.realtime.output_audio import Part, Speaker
from parley_gateway.apis.realtime.server_events import Emit, new_id

Status: TypeAlias = Literal["completed", "cancelled", "failed", "incomplete"]


@dataclass(frozen=True)
class Style:
    """How a response is given; fixed when it is created."""

    writes_only: bool
    conversation_id: str
    output: dict[str, Any]
    """OpenAI's ``audio.output``."""
    max_output_tokens: int | str
    metadata: dict[str, str] | None = None


@dataclass
class _Message:
    stored: StoredItem
    part: Part
    text: str = ""
    spoken: str = ""
    """The words that the audio so far covers."""
    open: bool = True


@dataclass
class Response:
    """Tells of an answer of the agent, or of as much of it as comes before or after function calls.

    Args:
        emit: Sends server events.
        items: Gets the response's items.
        speaker: Gets its audio.
        style: How it is given.
    """

    emit: Emit
    items: Items
    speaker: Speaker
    style: Style
    id: str = field(default_factory=lambda: new_id("resp"))
    turn: int | None = None
    """The agent's turn; None: it is not known yet."""
    agent_id: str = ""
    """What the agent calls it."""
    calls: int = 0
    """Functions that it has called."""
    failure: protocol.ErrorEvent | None = None
    """What went wrong in it."""
    ended: tuple[Status, str | None] | None = None
    """How it ends; what it cost is awaited."""
    _output: list[StoredItem] = field(default_factory=list)
    _message: _Message | None = None

    def create(self) -> None:
        """Tell that it begins."""
        self.emit("response.created", response=self._body("in_progress"))

    def bind(self, turn: int, agent_id: str) -> None:
        """It is this turn of the agent's."""
        self.turn, self.agent_id = turn, agent_id

    # --- content ----------------------------------------------------------------------------

    def write(self, text: str) -> None:
        """The next words of the answer."""
        message = self._opened()
        message.text += text
        kind = "response.output_text.delta" if self.style.writes_only else _TRANSCRIPT + ".delta"
        self._tell(kind, message, delta=text)

    def speak(self, audio: AgentAudio) -> None:
        """The next audio of the answer."""
        if self.style.writes_only:
            return
        message = self._opened()
        if message.stored.spoken is None:
            message.stored.spoken = Spoken(self.agent_id, audio.offset_ms)
        message.spoken += audio.text
        if len(audio.samples):
            message.stored.spoken.length_ms += audio.duration_ms
            self.speaker.play(message.part, audio)

    def call(self, request: protocol.ToolRequest) -> None:
        """A function is to be called."""
        self.calls += 1
        index = len(self._output)
        arguments = msgspec.json.encode(request.arguments).decode()
        body = {
            "id": new_id("item"),
            "object": "realtime.item",
            "type": "function_call",
            "status": "in_progress",
            "call_id": request.call_id,
            "name": request.name,
            "arguments": "",
        }
        stored = StoredItem(body)
        self._add(stored)
        place = {
            "response_id": self.id,
            "item_id": stored.id,
            "output_index": index,
            "call_id": request.call_id,
        }
        self.emit("response.function_call_arguments.delta", **place, delta=arguments)
        body["status"], body["arguments"] = "completed", arguments
        self.emit("response.function_call_arguments.done", **place, arguments=arguments, name=request.name)
        self._finish_item(index, stored)

    @property
    def is_silent(self) -> bool:
        """Whether nothing is spoken in it."""
        return self._message is None or self.style.writes_only

    @property
    def is_said(self) -> bool:
        """Whether the audio so far covers all words that were written."""
        message = self._message
        if message is None or self.style.writes_only:
            return True
        return _letters(message.text) <= _letters(message.spoken)

    # --- end --------------------------------------------------------------------------------

    def finish_content(self, *, complete: bool) -> None:
        """Nothing more is said or written."""
        message = self._message
        if message is None or not message.open:
            return
        message.open = False
        status = "completed" if complete else "incomplete"
        message.stored.body["status"] = status
        text = message.text
        if self.style.writes_only:
            message.stored.body["content"] = [{"type": "output_text", "text": text}]
            self._tell("response.output_text.done", message, text=text)
            part = {"type": "text", "text": text}
        else:
            message.stored.body["content"] = [{"type": "output_audio", "transcript": text}]
            if complete:
                self.speaker.finish()
            self._tell("response.output_audio.done", message)
            self._tell(_TRANSCRIPT + ".done", message, transcript=text)
            part = {"type": "audio", "transcript": text}
        self._tell("response.content_part.done", message, part=part)
        self._finish_item(message.part.output_index, message.stored)

    @property
    def spoken(self) -> StoredItem | None:
        """The item that has audio."""
        stored = self._message.stored if self._message else None
        return stored if stored is not None and stored.spoken is not None else None

    def heard(self, text: str) -> None:
        """Of the answer only this was heard."""
        message = self._message
        if message is not None and not self.style.writes_only and not self.calls:
            message.stored.body["content"] = [{"type": "output_audio", "transcript": text}]

    def done(
        self,
        status: Status,
        *,
        reason: str | None = None,
        usage: dict[str, Any] | None = None,
    ) -> None:
        """Tell that it is over."""
        self.finish_content(complete=status == "completed")
        details: dict[str, Any] = {"type": status}
        if reason is not None:
            details["reason"] = reason
        if status == "failed" and self.failure is not None:
            details["error"] = {
                "type": "server_error",
                "code": self.failure.code,
                "message": self.failure.message,
            }
        body = self._body(status)
        body.update(status_details=None if status == "completed" else details, usage=usage)
        self.emit("response.done", response=body)
        self.speaker.over(self.id)

    # --- parts ------------------------------------------------------------------------------

    def _opened(self) -> _Message:
        if self._message is not None and self._message.open:
            return self._message
        index = len(self._output)
        body: dict[str, Any] = {
            "id": new_id("item"),
            "object": "realtime.item",
            "type": "message",
            "status": "in_progress",
            "role": "assistant",
            "content": [],
        }
        stored = StoredItem(body, by_agent=True)
        self._add(stored)
        self._message = _Message(stored, Part(self.id, stored.id, index, self.agent_id))
        part = {"type": "text", "text": ""} if self.style.writes_only else {"type": "audio", "transcript": ""}
        self._tell("response.content_part.added", self._message, part=part)
        return self._message

    def _add(self, stored: StoredItem) -> None:
        index = len(self._output)
        self._output.append(stored)
        self.emit(
            "response.output_item.added", response_id=self.id, output_index=index, item=dict(stored.body)
        )
        self.items.add(stored)

    def _finish_item(self, index: int, stored: StoredItem) -> None:
        self.items.finish(stored)
        self.emit(
            "response.output_item.done", response_id=self.id, output_index=index, item=dict(stored.body)
        )

    def _tell(self, kind: str, message: _Message, **fields: Any) -> None:
        part = message.part
        self.emit(
            kind,
            response_id=part.response_id,
            item_id=part.item_id,
            output_index=part.output_index,
            content_index=part.content_index,
            **fields,
        )

    def _body(self, status: str) -> dict[str, Any]:
        style = self.style
        output = {key: style.output[key] for key in ("format", "voice") if key in style.output}
        return {
            "object": "realtime.response",
            "id": self.id,
            "status": status,
            "status_details": None,
            "output": [dict(stored.body) for stored in self._output],
            "conversation_id": style.conversation_id,
            "output_modalities": ["text"] if style.writes_only else ["audio"],
            "max_output_tokens": style.max_output_tokens,
            "audio": {"output": output},
            "usage": None,
            "metadata": style.metadata,
        }


_TRANSCRIPT = "response.output_audio_transcript"


def _letters(text: str) -> int:
    return sum(character.isalnum() for character in text)
