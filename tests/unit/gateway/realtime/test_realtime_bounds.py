"""Bounds of what clients can make the gateway store, and of connections."""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest
from starlette.requests import HTTPConnection

from parley.protocol import MAX_MESSAGE_BYTES
from parley_gateway.apis.realtime import client_secrets
from parley_gateway.apis.realtime.agent_commands import AgentCommands, CommandQueue
from parley_gateway.apis.realtime.client_secrets import SecretSessions
from parley_gateway.apis.realtime.items import Items, StoredItem
from parley_gateway.apis.settings import RealtimeSettings
from parley_gateway.calls import CallSettings, hold_share
from parley_gateway.errors import TooManyCallsError
from parley_gateway.security.principal import ANONYMOUS, Principal
from parley_gateway.security.tokens import Grant
from parley_gateway.shares import Shares

MEBIBYTE = 1_048_576


def item_of(text):
    """A client's message of the user."""
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


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
    ("kind", "fields"),
    [
        ("session.update", {"session": {"type": "realtime", "instructions": "x" * MAX_MESSAGE_BYTES}}),
        ("response.create", {"response": {"tools": [[]] * 50_000}}),
        ("session.update", {"session": {"type": "realtime", "tracing": [[]] * 50_000}}),
        ("input_audio_buffer.clear", {"more": "x" * MAX_MESSAGE_BYTES}),
    ],
)
def test_event_without_audio_that_is_too_large_is_refused(session, kind, fields):
    session.send(kind, event_id="e", **fields)
    assert session.error() == ("event_too_large", "e")


@pytest.mark.parametrize(
    "large",
    [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x" * 300_000}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "x" * 300_000},
    ],
)
def test_an_item_that_the_agent_would_refuse_is_not_added(session, large):
    session.send("conversation.item.create", event_id="e", item=large | {"id": "mine"})
    assert session.error() == ("item_create_too_large", "e")
    assert session.commands.take() == []
    session.send("conversation.item.retrieve", item_id="mine")
    assert session.one("error")["error"]["code"] == "item_retrieve_invalid_item_id"


def test_a_text_that_the_agent_would_refuse_is_not_added(session):
    session.conversation.on_call_opened(100)
    for text, is_refused in (("word " * 60, False), ("word " * 61, True), ("7" * 101, True)):
        session.send("conversation.item.create", event_id="e", item=item_of(text))
        assert session.commands.take() == ([] if is_refused else [("remember", "user", text)])
        if is_refused:
            assert session.error() == ("item_create_too_large", "e")
        else:
            assert session.kinds() == ["conversation.item.added", "conversation.item.done"]


def test_instructions_that_the_agent_would_refuse_begin_no_response(session):
    session.conversation.on_call_opened(100)
    session.send("response.create", event_id="e", response={"instructions": "word " * 61})
    assert session.error() == ("instructions_too_long", "e")
    assert session.commands.take() == []
    session.send("response.create", response={"instructions": "word " * 60})
    assert session.kinds() == ["response.created"]


async def test_the_first_item_waits_for_the_agents_limit(make_session):
    session = make_session(opened=False)
    first = {"type": "conversation.item.create", "event_id": "e", "item": item_of("word " * 61)}
    handling = asyncio.create_task(session.conversation.on_client_event(json.dumps(first)))
    await asyncio.sleep(0)
    assert session.commands.start is not None
    assert session.kinds() == []
    session.conversation.on_call_opened(100)
    await handling
    assert session.error() == ("item_create_too_large", "e")


def test_a_late_output_with_a_name_that_makes_it_too_large_is_refused(session):
    call = {"type": "function_call", "call_id": "c", "name": "f" * 200_000, "arguments": "{}"}
    session.send("conversation.item.create", item=call)
    session.take()
    output = {"type": "function_call_output", "call_id": "c", "output": "x" * 200_000}
    session.send("conversation.item.create", item=output)
    assert session.one("error")["error"]["code"] == "item_create_too_large"
    assert session.commands.take() == []


async def test_commands_are_bounded_by_number_and_by_size():
    commands = CommandQueue(2)
    assert await has_room(commands)
    commands.put("large", MEBIBYTE)
    assert not await has_room(commands)
    assert await commands.get() == "large"
    assert await has_room(commands)
    commands.put("one")
    commands.put("two")
    assert not await has_room(commands)
    assert [await commands.get(), await commands.get()] == ["one", "two"]


async def test_audio_and_texts_count_by_size():
    for fill in (
        lambda commands: commands.send_audio(np.zeros(MEBIBYTE // 2, np.int16)),
        lambda commands: commands.remember("user", "x" * MEBIBYTE),
        lambda commands: commands.answer_tool("c", "x" * MEBIBYTE),
    ):
        commands = AgentCommands(RealtimeSettings(), lambda error: None)
        assert await has_room(commands)
        fill(commands)
        assert not await has_room(commands)


async def has_room(queue):
    """Whether the queue accepts another event at once."""
    room = asyncio.ensure_future(queue.wait_for_room())
    await asyncio.sleep(0)
    done = room.done()
    room.cancel()
    return done


def connection(secret):
    """Brings a secret."""
    headers = [(b"authorization", f"Bearer {secret}".encode())]
    return HTTPConnection({"type": "http", "headers": headers, "query_string": b"", "path": "/"})


def store(secrets, token, owner, session, expires_at=4e9):
    grant = Grant(token, expires_at, frozenset(("agent",)), None, False)
    secrets.store(grant, Principal(id=owner, scopes=frozenset(("agent",))), session)


def test_no_principal_displaces_the_settings_of_others():
    secrets = SecretSessions(4)
    store(secrets, "quiet", "one", {"instructions": "mine"})
    for number in range(10):
        store(secrets, f"loud-{number}", "other", {"instructions": str(number)})
    assert secrets.find(connection("quiet")) == {"instructions": "mine"}
    found = [number for number in range(10) if secrets.find(connection(f"loud-{number}"))]
    assert found == [7, 8, 9]


def test_large_settings_push_out_their_owner_s_own():
    secrets = SecretSessions(1_000)
    store(secrets, "quiet", "one", {"instructions": "mine"})
    for number in range(100):
        store(secrets, f"loud-{number}", "other", {"instructions": "x" * 250_000})
    assert secrets.find(connection("quiet")) == {"instructions": "mine"}
    assert sum(bool(secrets.find(connection(f"loud-{number}"))) for number in range(100)) == 67


def test_storing_large_settings_weighs_each_entry_a_few_times(monkeypatch):
    """Not once for each entry that is dropped."""
    secrets = SecretSessions(1_000)
    for number in range(1_000):
        store(secrets, f"small-{number}", f"owner-{number % 10}", {"instructions": "x" * 16_000})
    weighed = []
    monkeypatch.setattr(client_secrets, "len", lambda one: weighed.append(one) or len(one), raising=False)
    store(secrets, "large", "owner-0", {"instructions": "x" * 1_500_000})
    assert not secrets.find(connection("small-0"))
    assert len(weighed) < 5_000


def test_expired_secret_is_not_found():
    secrets = SecretSessions(2)
    store(secrets, "old", "one", {"instructions": "mine"}, expires_at=1.0)
    store(secrets, "new", "one", {"instructions": "yours"})
    assert secrets.find(connection("old")) == {}
    assert secrets.find(connection("new")) == {"instructions": "yours"}


ONE, OTHER = (Principal(id=name, scopes=frozenset({"agent"})) for name in ("key-1", "key-2"))


def places_of(**settings):
    settings = CallSettings(**settings)
    places = Shares(settings.limit)
    return lambda principal: hold_share(places, principal, settings, "connections")


def test_key_cannot_hold_all_places():
    take = places_of(limit=3, per_key=1)
    with take(ONE):
        with pytest.raises(TooManyCallsError, match="of this key are open"), take(ONE):
            pass
        with take(OTHER):
            pass
    with take(ONE):
        pass


def test_callers_without_a_key_are_counted_by_their_addresses():
    take = places_of(limit=4, per_key=1)
    one, other = (replace(ANONYMOUS, address=address) for address in ("192.0.2.1", "192.0.2.2"))
    with ExitStack() as held:
        for _ in range(3):
            held.enter_context(take(one))
        with pytest.raises(TooManyCallsError, match="its share"):
            held.enter_context(take(one))
        held.enter_context(take(other))
        with pytest.raises(TooManyCallsError, match="all this gateway takes"):
            held.enter_context(take(OTHER))
