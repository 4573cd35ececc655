"""What clients can make the gateway keep is bounded by its size."""

import asyncio
import json

import numpy as np
import pytest
from starlette.requests import HTTPConnection

from parley_gateway.apis.realtime.agent_commands import AgentCommands
from parley_gateway.apis.realtime.client_secrets import SecretSessions
from parley_gateway.apis.realtime.command_queue import CommandQueue
from parley_gateway.apis.realtime.items import Items, StoredItem
from parley_gateway.apis.realtime.server_events import ClientEventError
from parley_gateway.apis.realtime.settings import RealtimeSettings
from parley_gateway.security.principal import Principal
from parley_gateway.security.tokens import Grant

MEBIBYTE = 1_048_576


def item(name, text=""):
    return StoredItem({"id": name, "type": "message", "content": [{"type": "input_text", "text": text}]})


def test_the_oldest_items_are_forgotten_when_they_are_large():
    items = Items(lambda *_, **__: None)
    for number in range(20):
        items.add(item(f"item_{number}", "x" * 200_000))
    assert "item_19" in items
    assert [f"item_{number}" in items for number in range(20)].count(True) == 10


def test_an_item_that_grows_is_weighed_again():
    items = Items(lambda *_, **__: None)
    items.add(item("old", "x" * MEBIBYTE))
    growing = item("new")
    items.add(growing)
    growing.body["content"][0]["text"] = "x" * 2 * MEBIBYTE
    items.finish(growing)
    assert "old" not in items
    assert "new" in items


@pytest.mark.parametrize(
    "large",
    [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x" * 300_000}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "x" * 300_000},
    ],
)
def test_an_item_that_the_agent_would_refuse_is_not_added(session, large):
    session.send("conversation.item.create", event_id="e", item=large | {"id": "mine"})
    error = session.one("error")["error"]
    assert (error["code"], error["event_id"]) == ("item_create_too_large", "e")
    assert session.port.take() == []
    session.send("conversation.item.retrieve", item_id="mine")
    assert session.one("error")["error"]["code"] == "item_retrieve_invalid_item_id"


def test_a_late_output_is_not_told_with_a_name_that_makes_it_too_large(session):
    call = {"type": "function_call", "call_id": "c", "name": "f" * 200_000, "arguments": "{}"}
    session.send("conversation.item.create", item=call)
    session.take()
    output = {"type": "function_call_output", "call_id": "c", "output": "x" * 200_000}
    session.send("conversation.item.create", item=output)
    assert session.one("error")["error"]["code"] == "item_create_too_large"
    assert session.port.take() == []


async def test_wishes_have_room_by_number_and_by_size():
    wishes = CommandQueue(2)
    assert await has_room(wishes)
    wishes.put("large", MEBIBYTE)
    assert not await has_room(wishes)
    assert await wishes.take() == "large"
    assert await has_room(wishes)
    wishes.put("one")
    wishes.put("two")
    assert not await has_room(wishes)
    assert [await wishes.take(), await wishes.take()] == ["one", "two"]


async def test_audio_and_texts_count_by_size():
    for fill in (
        lambda uplink: uplink.audio(np.zeros(MEBIBYTE // 2, np.int16)),
        lambda uplink: uplink.remember("user", "x" * MEBIBYTE),
        lambda uplink: uplink.answer_tool("c", "x" * MEBIBYTE),
    ):
        uplink = AgentCommands(RealtimeSettings(), lambda error: None)
        assert await has_room(uplink)
        fill(uplink)
        assert not await has_room(uplink)


async def has_room(queue):
    """Whether nobody would have to wait."""
    room = asyncio.ensure_future(queue.room())
    await asyncio.sleep(0)
    done = room.done()
    room.cancel()
    return done


def connection(secret):
    """Brings a secret."""
    headers = [(b"authorization", f"Bearer {secret}".encode())]
    return HTTPConnection({"type": "http", "headers": headers, "query_string": b"", "path": "/"})


def keep(secrets, token, owner, session, expires_at=4e9):
    grant = Grant(token, expires_at, frozenset(("agent",)), None, False)
    secrets.remember(grant, Principal(id=owner, scopes=frozenset(("agent",))), session)


def test_nobody_pushes_out_what_others_keep():
    secrets = SecretSessions(4)
    keep(secrets, "quiet", "one", {"instructions": "mine"})
    for number in range(10):
        keep(secrets, f"loud-{number}", "other", {"instructions": str(number)})
    assert secrets.find(connection("quiet")) == {"instructions": "mine"}
    found = [number for number in range(10) if secrets.find(connection(f"loud-{number}"))]
    assert found == [7, 8, 9]


def test_large_settings_push_out_their_owner_s_own():
    secrets = SecretSessions(1_000)
    keep(secrets, "quiet", "one", {"instructions": "mine"})
    for number in range(100):
        keep(secrets, f"loud-{number}", "other", {"instructions": "x" * 250_000})
    assert secrets.find(connection("quiet")) == {"instructions": "mine"}
    assert sum(bool(secrets.find(connection(f"loud-{number}"))) for number in range(100)) == 67
    with pytest.raises(ClientEventError):
        keep(secrets, "huge", "other", json.loads('{"instructions": "' + "x" * 300_000 + '"}'))


def test_what_has_expired_is_not_found():
    secrets = SecretSessions(2)
    keep(secrets, "old", "one", {"instructions": "mine"}, expires_at=1.0)
    keep(secrets, "new", "one", {"instructions": "yours"})
    assert secrets.find(connection("old")) == {}
    assert secrets.find(connection("new")) == {"instructions": "yours"}
