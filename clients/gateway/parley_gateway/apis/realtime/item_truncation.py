"""What of an answer was heard after all, as the client says later."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from parley import protocol
from parley_gateway.apis.realtime import client_events as client
from parley_gateway.apis.realtime.agent_commands import AgentCommands
from parley_gateway.apis.realtime.items import Items, StoredItem
from parley_gateway.apis.realtime.response import Response
from parley_gateway.apis.realtime.server_events import REFUSED_CORRECTIONS, ClientEventError, Emit

_PENDING = 64


@dataclass(frozen=True)
class _Correction:
    event: client.ItemTruncate | client.ItemDelete
    item: StoredItem


class ItemTruncation:
    """Truncates answers in the agent's memory, and tells the client when that is done.

    Args:
        port: To the agent.
        emit: Sends server events.
        items: The conversation's.
    """

    def __init__(self, port: AgentCommands, emit: Emit, items: Items) -> None:
        self._port = port
        self._emit = emit
        self._items = items
        self._pending: deque[_Correction] = deque()

    def obey(self, event: client.ItemTruncate | client.ItemDelete) -> None:
        """Truncate an answer, or delete one: that is to say that nothing of it was heard.

        Raises:
            Refusal: there is no such item, or it is none that can be.
        """
        verb = "truncate" if isinstance(event, client.ItemTruncate) else "delete"
        item = self._items.find(event.item_id, verb)
        if item.spoken is None:
            self._obey_unspoken(event, item)
            return
        if len(self._pending) >= _PENDING:
            raise ClientEventError("Too many corrections at once.", code="too_many_corrections")
        heard_ms = 0
        if isinstance(event, client.ItemTruncate):
            heard_ms = min(max(0, event.audio_end_ms), round(item.spoken.length_ms))
        self._pending.append(_Correction(event, item))
        self._port.truncate(item.spoken.response_id, item.spoken.from_ms + heard_ms)

    def done(self, event: protocol.Truncated) -> None:
        """The agent has forgotten the rest."""
        if not self._pending:
            return
        correction = self._pending.popleft()
        item = correction.item
        if isinstance(correction.event, client.ItemDelete):
            self._delete(item)
            return
        if item.spoken is not None and item.spoken.from_ms == 0:
            item.body["content"] = [{"type": "output_audio", "transcript": event.spoken_text}]
        self._emit(
            "conversation.item.truncated",
            item_id=item.id,
            content_index=correction.event.content_index,
            audio_end_ms=correction.event.audio_end_ms,
        )

    def cut(self, response: Response | None, event: protocol.Interrupted) -> None:
        """Over WebRTC the agent knows itself what was heard of a response that it was made to stop."""
        item = response.spoken if response is not None and response.turn == event.turn else None
        if item is not None and item.spoken is not None:
            heard_ms = max(0, event.played_ms - item.spoken.from_ms)
            self._emit("conversation.item.truncated", item_id=item.id, content_index=0, audio_end_ms=heard_ms)

    def refused(self, code: str) -> str | None:
        """The agent does not do something; returns the id of the client's event, if it was a correction."""
        if not self._pending or code not in REFUSED_CORRECTIONS:
            return None
        return self._pending.popleft().event.event_id

    def _obey_unspoken(self, event: client.ItemTruncate | client.ItemDelete, item: StoredItem) -> None:
        unheard = item.by_agent and not any("text" in part for part in item.body["content"])
        if isinstance(event, client.ItemDelete) and unheard:
            self._delete(item)  # the agent remembers only what was heard
            return
        if isinstance(event, client.ItemDelete):
            message = "Only answers can be deleted: what else was said stays part of the conversation."
            raise ClientEventError(message, code="item_delete_unsupported", param="item_id")
        message = "Only model output audio messages can be truncated."
        raise ClientEventError(message, code="invalid_value", param="item_id")

    def _delete(self, item: StoredItem) -> None:
        self._items.remove(item)
        self._emit("conversation.item.deleted", item_id=item.id)
