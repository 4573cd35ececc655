"""What the user has said, as items: committed, written down bit by bit, and complete."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from parley_gateway.apis.realtime.items import Items, StoredItem
from parley_gateway.apis.realtime.server_events import Emit, new_id


@dataclass
class InputTurn:
    """What the user is saying; milliseconds of the audio that was appended."""

    start_ms: int
    end_ms: int = 0
    item_id: str = field(default_factory=lambda: new_id("item"))
    partial: str = ""
    streamed: str = ""
    """What was sent of the text so far."""


class InputItems:
    """Tells the client of the user's items.

    Args:
        emit: Sends server events.
        items: Gets them.
    """

    def __init__(self, emit: Emit, items: Items) -> None:
        self._emit = emit
        self._items = items

    def commit(self, turn: InputTurn) -> None:
        """The turn is an item now."""
        previous = self._items.last_id
        self._emit("input_audio_buffer.committed", previous_item_id=previous, item_id=turn.item_id)
        body: dict[str, Any] = {
            "id": turn.item_id,
            "object": "realtime.item",
            "type": "message",
            "status": "completed",
            "role": "user",
            "content": [{"type": "input_audio", "transcript": None}],
        }
        item = StoredItem(body)
        self._items.add(item)
        self._items.finish(item)

    def stream(self, turn: InputTurn, text: str) -> None:
        """Send what is new of a text that grows; what has changed meanwhile comes with its end."""
        delta = text[len(turn.streamed) :]
        if not delta or not text.startswith(turn.streamed):
            return
        turn.streamed = text
        self._emit(
            "conversation.item.input_audio_transcription.delta",
            item_id=turn.item_id,
            content_index=0,
            delta=delta,
        )

    def write_down(self, turn: InputTurn, text: str) -> None:
        """All of the text is there; the item has it, if it is still known."""
        if turn.item_id in self._items:
            stored = self._items.find(turn.item_id, "retrieve")
            stored.body["content"] = [{"type": "input_audio", "transcript": text}]

    def complete(self, turn: InputTurn, text: str) -> None:
        """Tell all of the text."""
        self._emit(
            "conversation.item.input_audio_transcription.completed",
            item_id=turn.item_id,
            content_index=0,
            transcript=text,
            usage={"type": "duration", "seconds": round(max(0, turn.end_ms - turn.start_ms) / 1000, 3)},
        )


def stable_words(first: str, second: str) -> str:
    """The words with which both begin; the last word of neither is certain."""
    words: list[str] = []
    for one, other in zip(first.split()[:-1], second.split()[:-1], strict=False):
        if one != other:
            break
        words.append(one)
    return " ".join(words)
