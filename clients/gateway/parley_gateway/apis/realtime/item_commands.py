"""The client's commands on items: creation, retrieval, truncation and deletion."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from parley import protocol
from parley_gateway.apis.realtime import client_events as client
from parley_gateway.apis.realtime.agent_commands import AgentCommands
from parley_gateway.apis.realtime.function_calls import tool_result_note
from parley_gateway.apis.realtime.items import Items, StoredItem
from parley_gateway.apis.realtime.responses import Response, Responses
from parley_gateway.apis.realtime.server_events import (
    REFUSED_CORRECTIONS,
    ClientEventError,
    Emit,
    new_id,
    unsupported,
)

_MAX_ITEM_BYTES = protocol.MAX_MESSAGE_BYTES - 1_024
"""The agent's message has other fields besides the item."""
_MAX_AUDIO_PARTS = 4
_MAX_PENDING = 64


class ItemCreation:
    """Adds the client's items to the conversation, and outputs of functions to the agent's turn.

    The agent's history only grows at its end: an item is appended, whatever its ``previous_item_id``.
    """

    def __init__(
        self,
        commands: AgentCommands,
        items: Items,
        responses: Responses,
        *,
        check_text: Callable[[str], None],
        write_down: Callable[[str], Awaitable[str]],
        answer_approval: Callable[[client.Item], None],
    ) -> None:
        # `check_text` raises ClientEventError for a text that the agent would refuse as too long;
        # `write_down` gives the words of audio in base64.
        self._commands = commands
        self._items = items
        self._responses = responses
        self._check_text = check_text
        self._write_down = write_down
        self._answer_approval = answer_approval

    async def create(self, event: client.ItemCreate) -> None:
        """Add an item, or raise ClientEventError."""
        item = event.item
        if item.id is not None and item.id in self._items:
            message = f"Error adding item: an item with id {item.id!r} already exists."
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
                await self._add_message(item)
            case "function_call_output":
                self._add_output(item)
            case "mcp_approval_response":
                self._answer_approval(item)
                self._add(
                    item,
                    approval_request_id=item.approval_request_id,
                    approve=item.approve,
                    reason=item.reason,
                )
            case "function_call":
                self._add(
                    item, call_id=item.call_id or "", name=item.name or "", arguments=item.arguments or ""
                )
            case _:
                raise unsupported(f"Items of type {item.type!r} are", "item.type")

    async def _add_message(self, item: client.Item) -> None:
        role = _role(item)
        written = "output_text" if role == "assistant" else "input_text"
        content = []
        if sum(part.type == "input_audio" for part in item.content or ()) > _MAX_AUDIO_PARTS:
            message = f"Error adding item: at most {_MAX_AUDIO_PARTS} parts of audio are allowed."
            raise ClientEventError(message, code="item_create_too_large", param="item.content")
        for index, part in enumerate(item.content or ()):
            if part.type == "input_audio" and role == "user":
                content.append({"type": part.type, "transcript": await self._write_down(part.audio or "")})
            elif part.type in ("input_text", "output_text", "text"):
                content.append({"type": written, "text": part.text or ""})
            else:
                what = f"Content of type {part.type!r} in an added message is"
                raise unsupported(what, f"item.content[{index}].type")
        texts = [part.get("text") or part.get("transcript") or "" for part in content]
        text = "\n".join(text for text in texts if text.strip())
        if text:
            self._check_text(text)
            self._commands.remember(role, text)
        self._add(item, role=role, content=content)

    def _add_output(self, item: client.Item) -> None:
        call_id, output = item.call_id or "", item.output or ""
        if not self._responses.calls.set_output(call_id, output):
            self._add_late_output(call_id, output)
        self._add(item, call_id=call_id, output=output)
        self._responses.send_outputs()

    def _add_late_output(self, call_id: str, output: str) -> None:
        """Add the output of a call that no longer waits to the agent's history, as a note."""
        request = self._responses.calls.find_late(call_id)
        name = request.name if request is not None else self._items.find_function_name(call_id)
        if name is None:
            message = f"Tool call ID '{call_id}' not found in conversation."
            raise ClientEventError(message, code="invalid_tool_call_id", param="item.call_id")
        text = tool_result_note(name, output)
        self._check_text(text)
        self._commands.remember("system", text)

    def _add(self, item: client.Item, **fields: Any) -> None:
        self._items.add_complete(item.id or new_id("item"), item.type, **fields)


def _check_size(item: client.Item) -> None:
    """Raise ClientEventError for what the agent would refuse as too large, before it is stored."""
    content = [msgspec.structs.replace(part, audio=None) for part in item.content or ()]
    size = len(msgspec.json.encode(msgspec.structs.replace(item, content=content)))
    if size > _MAX_ITEM_BYTES:
        message = f"Error adding item: it has {size} bytes; at most {_MAX_ITEM_BYTES} are allowed."
        raise ClientEventError(message, code="item_create_too_large", param="item")


def _role(item: client.Item) -> Literal["user", "assistant", "system"]:
    match item.role:
        case "user" | "assistant" | "system" as role:
            return role
    raise ClientEventError(f"Invalid value for 'item.role': {item.role!r}.", param="item.role")


def _check_part(event: client.ItemTruncate, item: StoredItem) -> None:
    """Raise ClientEventError unless the event names audio of a response."""
    if not item.by_agent or item.is_written:
        raise ClientEventError("Only model output audio messages can be truncated.", param="item_id")
    if event.content_index != 0:
        message = f"The item has no content part {event.content_index}."
        raise ClientEventError(message, param="content_index")
    if event.audio_end_ms < 0:
        message = f"Invalid value for 'audio_end_ms': {event.audio_end_ms} is below 0."
        raise ClientEventError(message, param="audio_end_ms")


@dataclass(frozen=True)
class _Correction:
    event: client.ItemTruncate | client.ItemDelete
    item: StoredItem
    played_ms: int


class ItemTruncation:
    """Truncates responses in the agent's history, and confirms that to the client."""

    def __init__(self, commands: AgentCommands, emit: Emit, items: Items, responses: Responses) -> None:
        self._commands = commands
        self._emit = emit
        self._items = items
        self._responses = responses
        self._pending: deque[_Correction] = deque()

    def truncate(self, event: client.ItemTruncate | client.ItemDelete) -> None:
        """Truncate a response, or delete it because nothing of it was played; or raise ClientEventError."""
        is_deletion = isinstance(event, client.ItemDelete)
        item = self._items.find(event.item_id, "delete" if is_deletion else "truncate")
        if isinstance(event, client.ItemTruncate):
            _check_part(event, item)
        if item.spoken is None:
            if isinstance(event, client.ItemTruncate):
                self._responses.stop_item(item)
                self._confirm(event, item, "", 0)
            else:
                self._delete_unspoken(item)
            return
        if len(self._pending) >= _MAX_PENDING:
            raise ClientEventError("Too many corrections at once.", code="too_many_corrections")
        played_ms = 0
        if isinstance(event, client.ItemTruncate):
            played_ms = min(event.audio_end_ms, round(item.spoken.length_ms))
        self._pending.append(_Correction(event, item, played_ms))
        self._commands.truncate(item.spoken.response_id, item.spoken.from_ms + played_ms)

    def _delete_unspoken(self, item: StoredItem) -> None:
        if not item.by_agent or item.is_written:
            message = "Only responses can be deleted: other items remain part of the conversation."
            raise ClientEventError(message, code="item_delete_unsupported", param="item_id")
        self._delete(item)  # the agent keeps only what was played

    def _delete(self, item: StoredItem) -> None:
        self._items.remove(item)
        self._emit("conversation.item.deleted", item_id=item.id)

    def on_truncated(self, event: protocol.Truncated) -> None:
        """Confirm the oldest correction: the agent has applied it."""
        if not self._pending:
            return
        correction = self._pending.popleft()
        item = correction.item
        if isinstance(correction.event, client.ItemDelete):
            self._delete(item)
            return
        is_whole = item.spoken is not None and item.spoken.from_ms == 0
        self._confirm(correction.event, item, event.spoken_text if is_whole else None, correction.played_ms)

    def _confirm(
        self, event: client.ItemTruncate, item: StoredItem, text: str | None, played_ms: int
    ) -> None:
        """Report a truncation; ``text`` is the item's new transcript, None: it is not known."""
        if text is not None:
            item.body["content"] = [{"type": "output_audio", "transcript": text}]
        self._emit(
            "conversation.item.truncated",
            item_id=item.id,
            content_index=event.content_index,
            audio_end_ms=played_ms,
        )

    def on_interrupted(self, response: Response | None, event: protocol.Interrupted) -> None:
        """Report the truncation of an interrupted response over WebRTC, where the agent measures playback."""
        item = response.message if response is not None and response.turn == event.turn else None
        if item is not None and item.spoken is not None:
            played_ms = max(0, event.played_ms - item.spoken.from_ms)
            self._emit(
                "conversation.item.truncated", item_id=item.id, content_index=0, audio_end_ms=played_ms
            )

    def on_refused(self, code: str) -> str | None:
        """The id of the client's event if a refusal of the agent belongs to a correction; else None."""
        if not self._pending or code not in REFUSED_CORRECTIONS:
            return None
        return self._pending.popleft().event.event_id
