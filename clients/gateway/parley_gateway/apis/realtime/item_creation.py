"""What the client adds to the conversation, and shows of it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from parley import protocol
from parley_gateway.apis.realtime import client_events as client
from parley_gateway.apis.realtime.agent_commands import AgentCommands
from parley_gateway.apis.realtime.function_calls import told
from parley_gateway.apis.realtime.items import Items, StoredItem
from parley_gateway.apis.realtime.responses import Responses
from parley_gateway.apis.realtime.server_events import ClientEventError, Emit, new_id, unsupported

_LARGEST = protocol.MAX_MESSAGE_BYTES - 1_024
"""The agent's message has other fields beside (bytes)."""


class ItemCreation:
    """Passes on what the agent is to remember, and the outputs of functions.

    The agent's history only grows at its end: an item is put there, wherever the client wants it.

    Args:
        port: To the agent.
        emit: Sends server events.
        items: The conversation's.
        responses: Waits for outputs.
    """

    def __init__(self, port: AgentCommands, emit: Emit, items: Items, responses: Responses) -> None:
        self._port = port
        self._emit = emit
        self._items = items
        self._responses = responses

    def obey(self, event: client.ItemCreate | client.ItemRetrieve) -> None:
        """Add an item, or show one.

        Raises:
            Refusal: it cannot be added, or is not there.
        """
        if isinstance(event, client.ItemRetrieve):
            item = self._items.find(event.item_id, "retrieve")
            self._emit("conversation.item.retrieved", item=dict(item.body))
        else:
            self._create_item(event)

    def _create_item(self, event: client.ItemCreate) -> None:
        item = event.item
        if item.id is not None and item.id in self._items:
            message = f"Error adding item: an item with id {item.id!r} is there already."
            raise ClientEventError(message, code="item_create_duplicate_item_id", param="item.id")
        previous = event.previous_item_id
        if previous not in (None, "root") and previous not in self._items:
            message = f"Error adding item: the previous item with id {previous!r} does not exist."
            raise ClientEventError(
                message, code="item_create_invalid_previous_item_id", param="previous_item_id"
            )
        _check_size(item)
        match item.type:
            case "message":
                self._remember_message(item)
            case "function_call_output":
                self._take_output(item)
            case "function_call":
                self._add(
                    item, call_id=item.call_id or "", name=item.name or "", arguments=item.arguments or ""
                )
            case _:
                raise unsupported(f"Items of type {item.type!r} are", "item.type")

    def _remember_message(self, item: client.Item) -> None:
        role = _role(item)
        texts = []
        for index, part in enumerate(item.content or ()):
            if part.type not in ("input_text", "output_text", "text"):
                what = f"Content of type {part.type!r} in a message that is added is"
                raise unsupported(what, f"item.content[{index}].type")
            texts.append(part.text or "")
        text = "\n".join(text for text in texts if text.strip())
        if text:
            self._port.remember(role, text)
        kind = "output_text" if role == "assistant" else "input_text"
        self._add(item, role=role, content=[{"type": kind, "text": text} for text in texts])

    def _take_output(self, item: client.Item) -> None:
        call_id, output = item.call_id or "", item.output or ""
        if not self._responses.calls.answered(call_id, output):
            self._take_late_output(call_id, output)
        self._add(item, call_id=call_id, output=output)
        self._responses.deliver()

    def _take_late_output(self, call_id: str, output: str) -> None:
        """Nobody waits for it: the agent is told, so that it knows what was done."""
        request = self._responses.calls.late(call_id)
        name = request.name if request is not None else self._items.name_of_call(call_id)
        if name is None:
            message = f"Tool call ID '{call_id}' not found in conversation."
            raise ClientEventError(message, code="invalid_tool_call_id", param="item.call_id")
        text = told(name, output)
        _check_size(text)
        self._port.remember("system", text)

    def _add(self, item: client.Item, **fields: Any) -> None:
        head = {"id": item.id or new_id("item"), "object": "realtime.item", "type": item.type}
        stored = StoredItem({**head, "status": "completed", **fields})
        self._items.add(stored)
        self._items.finish(stored)


def _check_size(value: Any) -> None:
    """Refuse what the agent would not take anyway, before anything is made of it.

    Raises:
        Refusal: it is too large.
    """
    size = len(msgspec.json.encode(value))
    if size > _LARGEST:
        message = f"Error adding item: it has {size} bytes; at most {_LARGEST} are allowed."
        raise ClientEventError(message, code="item_create_too_large", param="item")


def _role(item: client.Item) -> Literal["user", "assistant", "system"]:
    if item.role == "user":
        return "user"
    if item.role == "assistant":
        return "assistant"
    if item.role == "system":
        return "system"
    raise ClientEventError(f"Invalid value for 'item.role': {item.role!r}.", param="item.role")
