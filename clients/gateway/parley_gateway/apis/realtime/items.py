"""The conversation's items, as the client knows them."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import msgspec

from parley_gateway.apis.realtime.server_events import ClientEventError, Emit

_REMEMBERED = 1_024
"""Items that can be named; the agent's own history has other bounds."""
_REMEMBERED_BYTES = 2_097_152
"""What they may hold, as JSON."""


@dataclass
class Spoken:
    """Which stretch of the agent's audio an item is."""

    response_id: str
    """As the agent calls it."""
    from_ms: int
    """Where the item's first audio is in that response."""
    length_ms: float = 0.0


@dataclass
class StoredItem:
    """An item; ``body`` is OpenAI's object."""

    body: dict[str, Any]
    spoken: Spoken | None = None
    """None: it has no audio of the agent's."""
    by_agent: bool = False
    """Whether it is a message of the agent's."""

    @property
    def id(self) -> str:
        """OpenAI's id."""
        item_id: str = self.body["id"]
        return item_id


class Items:
    """All items in their order; the oldest are forgotten.

    Args:
        emit: Sends server events.
    """

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._items: OrderedDict[str, StoredItem] = OrderedDict()
        self._previous: dict[str, str | None] = {}
        self._sizes: dict[str, int] = {}
        self._bytes = 0

    @property
    def last_id(self) -> str | None:
        """The newest item; None: there is none."""
        return next(reversed(self._items), None)

    def __contains__(self, item_id: str) -> bool:
        return item_id in self._items

    def add(self, item: StoredItem) -> None:
        """Put an item at the end, and tell the client."""
        previous = self.last_id
        self._items[item.id] = item
        self._previous[item.id] = previous
        self._weigh(item)
        self._emit("conversation.item.added", previous_item_id=previous, item=dict(item.body))

    def finish(self, item: StoredItem) -> None:
        """Nothing of it changes any more."""
        if item.id in self._items:
            self._weigh(item)
        previous = self._previous.get(item.id)
        self._emit("conversation.item.done", previous_item_id=previous, item=dict(item.body))

    def find(self, item_id: str, verb: str) -> StoredItem:
        """The item of this id.

        Args:
            item_id: Of the client.
            verb: What is to be done with it, for the error's code.

        Raises:
            Refusal: there is none.
        """
        item = self._items.get(item_id)
        if item is None:
            message = f"Error: Item with item_id not found: {item_id}"
            raise ClientEventError(message, code=f"item_{verb}_invalid_item_id", param="item_id")
        return item

    def name_of_call(self, call_id: str) -> str | None:
        """Which function was called; None: there is no such call."""
        for item in reversed(self._items.values()):
            if item.body["type"] == "function_call" and item.body.get("call_id") == call_id:
                name: str = item.body["name"]
                return name
        return None

    def remove(self, item: StoredItem) -> None:
        """Forget it."""
        if self._items.pop(item.id, None) is not None:
            del self._previous[item.id]
            self._bytes -= self._sizes.pop(item.id)

    def _weigh(self, item: StoredItem) -> None:
        """An item is new, or has grown: make room for it."""
        size = len(msgspec.json.encode(item.body))
        self._bytes += size - self._sizes.get(item.id, 0)
        self._sizes[item.id] = size
        while len(self._items) > _REMEMBERED or (self._bytes > _REMEMBERED_BYTES and len(self._items) > 1):
            self.remove(next(iter(self._items.values())))
