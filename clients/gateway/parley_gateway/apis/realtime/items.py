"""The conversation's items, and the events of the user's."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from parley.protocol import Word
from parley_gateway.apis.realtime.server_events import ClientEventError, Emit, new_id

_MAX_ITEMS = 1_024
"""Stored items; the agent's own history has other bounds."""
_MAX_BYTES = 2_097_152
"""Size of the stored items as JSON."""
_MIN_COMMIT_MS = 100
"""OpenAI's shortest turn."""
_LEAST_PROBABILITY = 1e-9
_KEPT_BYTES = 262_144
"""Of the newest items that outlive the connection, as JSON."""


@dataclass
class SpokenPart:
    """The part of the agent's audio that belongs to an item."""

    response_id: str
    """The agent's id."""
    from_ms: int
    """Offset of the item's first audio in that response."""
    length_ms: float = 0.0


@dataclass
class StoredItem:
    """An item; ``body`` is OpenAI's object."""

    body: dict[str, Any]
    spoken: SpokenPart | None = None
    """None: the item has no audio of the agent."""
    by_agent: bool = False
    """Whether the item is a message of the agent."""
    is_written: bool = False
    """Whether the message is text without audio."""
    previous_id: str | None = None
    """The id of the item before it."""
    size: int = 0
    """Bytes as JSON."""

    @property
    def id(self) -> str:
        """OpenAI's id."""
        item_id: str = self.body["id"]
        return item_id


def begin_item(item_id: str, kind: str, status: str) -> dict[str, Any]:
    """The first fields of an item; those of MCP servers have no status."""
    head = {"id": item_id, "type": kind}
    return head if kind.startswith("mcp_") else head | {"object": "realtime.item", "status": status}


@dataclass
class InputTurn:
    """A turn of the user; its times are offsets in the appended audio."""

    start_ms: int
    end_ms: int = 0
    item_id: str = field(default_factory=lambda: new_id("item"))
    partial: str = ""
    streamed: str = ""
    """The text of the deltas that were sent."""


class Items:
    """Stores the newest items in their order, and sends their events."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._items: OrderedDict[str, StoredItem] = OrderedDict()
        self._bytes = 0

    @property
    def last_id(self) -> str | None:
        """The id of the newest item; None: there is no item."""
        return next(reversed(self._items), None)

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """OpenAI's objects of all items, the oldest first."""
        return [item.body for item in self._items.values()]

    def __contains__(self, item_id: str) -> bool:
        return item_id in self._items

    def state(self) -> list[StoredItem]:
        """The newest items, oldest first: those that outlive the connection."""
        kept: deque[StoredItem] = deque()
        size = 0
        for item in reversed(self._items.values()):
            size += item.size
            if size > _KEPT_BYTES:
                break
            kept.appendleft(item)
        return list(kept)

    def restore(self, items: list[StoredItem]) -> None:
        """Begin with the items of another connection."""
        for item in items:
            self._items[item.id] = item
            self._bytes += item.size

    def add(self, item: StoredItem) -> None:
        """Append an item and send its ``added`` event."""
        item.previous_id = self.last_id
        self._items[item.id] = item
        self._weigh(item)
        self._emit("conversation.item.added", previous_item_id=item.previous_id, item=dict(item.body))

    def add_complete(self, item_id: str, kind: str, **fields: Any) -> None:
        """Append an item that will not change, and send both of its events."""
        item = StoredItem(begin_item(item_id, kind, "completed") | fields)
        self.add(item)
        self.finish(item)

    def finish(self, item: StoredItem) -> None:
        """Send the ``done`` event of an item."""
        if item.id in self._items:
            self._weigh(item)
        self._emit("conversation.item.done", previous_item_id=item.previous_id, item=dict(item.body))

    def find(self, item_id: str, verb: str) -> StoredItem:
        """The item with this id, or ClientEventError, whose code contains ``verb``."""
        item = self._items.get(item_id)
        if item is None:
            message = f"Error: Item with item_id not found: {item_id}"
            raise ClientEventError(message, code=f"item_{verb}_invalid_item_id", param="item_id")
        return item

    def send(self, item_id: str) -> None:
        """Send a stored item, or raise ClientEventError."""
        self._emit("conversation.item.retrieved", item=dict(self.find(item_id, "retrieve").body))

    def find_function_name(self, call_id: str) -> str | None:
        """The name of the function of a stored call; None: the call is not stored."""
        for item in reversed(self._items.values()):
            if item.body["type"] == "function_call" and item.body.get("call_id") == call_id:
                name: str = item.body["name"]
                return name
        return None

    def commit_turn(self, turn: InputTurn) -> None:
        """Store a turn as an item."""
        previous = self.last_id
        self._emit("input_audio_buffer.committed", previous_item_id=previous, item_id=turn.item_id)
        content = [{"type": "input_audio", "transcript": None}]
        self.add_complete(turn.item_id, "message", role="user", content=content)

    def send_delta(self, turn: InputTurn, text: str) -> None:
        """Send what a growing text has gained. A changed text sends nothing until it is complete."""
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

    def store_transcript(self, turn: InputTurn, text: str) -> None:
        """Set the final transcript of the turn's item, if the item is still stored."""
        if turn.item_id in self._items:
            self._items[turn.item_id].body["content"] = [{"type": "input_audio", "transcript": text}]

    def complete_turn(self, turn: InputTurn, text: str, words: Sequence[Word] | None) -> None:
        """Send the final transcript, with the log probabilities of its ``words``; None: without any."""
        more = {} if words is None else {"logprobs": list(map(_logprob, words))}
        self._emit(
            "conversation.item.input_audio_transcription.completed",
            item_id=turn.item_id,
            content_index=0,
            transcript=text,
            usage={"type": "duration", "seconds": round(max(0, turn.end_ms - turn.start_ms) / 1000, 3)},
            **more,
        )

    def remove(self, item: StoredItem) -> None:
        """Remove an item."""
        if self._items.pop(item.id, None) is not None:
            item.previous_id = None
            self._bytes -= item.size

    def _weigh(self, item: StoredItem) -> None:
        """Count the size of a new or changed item, and remove the oldest items above the limits."""
        size = len(msgspec.json.encode(item.body))
        self._bytes += size - item.size
        item.size = size
        while len(self._items) > _MAX_ITEMS or (self._bytes > _MAX_BYTES and len(self._items) > 1):
            self.remove(next(iter(self._items.values())))


def check_commit(length_ms: float) -> None:
    """Raise ClientEventError for a turn whose audio is too short."""
    if length_ms < _MIN_COMMIT_MS:
        message = (
            "Error committing input audio buffer: buffer too small. Expected at least "
            f"{_MIN_COMMIT_MS}ms of audio, but buffer only has {length_ms:.2f}ms of audio."
        )
        raise ClientEventError(message, code="input_audio_buffer_commit_empty")


def stable_words(first: str, second: str) -> str:
    """The common first words of two partial transcripts; the last word of each may still change."""
    words: list[str] = []
    for one, other in zip(first.split()[:-1], second.split()[:-1], strict=False):
        if one != other:
            break
        words.append(one)
    return " ".join(words)


def _logprob(word: Word) -> dict[str, Any]:
    """A word as OpenAI's token: recognisers here give probabilities of words."""
    logprob = math.log(max(word.confidence, _LEAST_PROBABILITY))
    return {"token": word.text, "bytes": list(word.text.encode()), "logprob": logprob}
