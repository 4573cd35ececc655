"""Sessions of OpenAI Realtime whose client comes back on another connection, and who may not come back."""

import asyncio
import base64
import json
import logging
from contextlib import asynccontextmanager
from types import SimpleNamespace

import numpy as np
import pytest
from listening_gateway import closed, receive, until
from openai_session import check_event
from websockets.asyncio.client import connect

from parley import protocol
from parley_gateway.apis.sessions.record import name_in

LOOK = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
BELLA = {"audio": {"output": {"voice": "bella"}}}


class Client:
    """One connection; it checks and keeps the server's events."""

    def __init__(self, socket):
        self.socket = socket
        self.events = []

    async def send(self, kind, **fields):
        await self.socket.send(json.dumps({"type": kind, **fields}))

    async def add(self, text):
        """Add a message of the user."""
        content = [{"type": "input_text", "text": text}]
        await self.send(
            "conversation.item.create", item={"type": "message", "role": "user", "content": content}
        )

    async def say(self, text):
        """Add a message of the user, and ask for an answer."""
        await self.add(text)
        await self.send("response.create")

    async def wait_for(self, kind, **fields):
        """The next event of this type with these fields."""
        async with asyncio.timeout(5):
            while True:
                event = json.loads(await self.socket.recv())
                check_event(event)
                self.events.append(event)
                if event["type"] == kind and fields.items() <= event.items():
                    return event

    async def answer(self):
        """The next response that is done: its status, and what was said in it."""
        response = (await self.wait_for("response.done"))["response"]
        texts = [part["transcript"] for item in response["output"] for part in item.get("content", ())]
        return response["status"], "".join(texts).strip()

    def kinds(self):
        return [event["type"] for event in self.events]


@asynccontextmanager
async def connected(url, session_id=None, key=None):
    query = "model=gpt-realtime" if session_id is None else f"session_id={session_id}"
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    address = f"ws{url.removeprefix('http')}/v1/realtime?{query}"
    async with connect(address, compression=None, additional_headers=headers) as socket:
        yield Client(socket)


@asynccontextmanager
async def opened(url, key=None, **settings):
    """A client whose agent's session is open."""
    async with connected(url, key=key) as client:
        client.id = (await client.wait_for("session.created"))["session"]["id"]
        await client.send("session.update", session={"type": "realtime", **settings})
        await client.wait_for("session.updated")
        yield client


async def stored(gateways, client):
    """Wait until the store has what the client knows."""
    writes = gateways.memory.writes
    await client.send("conversation.item.retrieve", item_id="none")
    await client.wait_for("error")
    await until(lambda: gateways.memory.writes > writes)


async def refused(url, session_id, key=None):
    """How a client that comes back is refused: code of its error, code and reason of the close."""
    async with connected(url, session_id, key) as client:
        error = await client.wait_for("error")
        return error["error"]["code"], *await closed(client.socket)


def lose_from(session, kind, count):
    """Let an agent's events from the so many-th of a kind on be lost."""
    say, seen = session.stream.say, 0

    def say_some(event, samples=None):
        nonlocal seen
        seen += isinstance(event, kind)
        if seen < count:
            say(event, samples)

    session.stream.say = say_some


REFUSED = ("not_resumable", 1008, "not_resumable")


async def test_a_session_goes_on_at_another_gateway(gateways):
    await gateways.start()
    await gateways.start()
    async with opened(gateways.urls[0], instructions="Be brief.") as client:
        await client.say("hello")
        assert await client.answer() == ("completed", "You said hello.")
        added = next(event["item"] for event in client.events if event["type"] == "conversation.item.added")
        await stored(gateways, client)
        gateways.lines[0].cut()
    async with connected(gateways.urls[1], client.id) as after:
        session = (await after.wait_for("session.created"))["session"]
        assert (session["id"], session["instructions"]) == (client.id, "Be brief.")
        await after.send("conversation.item.retrieve", item_id=added["id"])
        assert (await after.wait_for("conversation.item.retrieved"))["item"] == added
        await after.say("bye")
        assert await after.answer() == ("completed", "You said bye.")
        await after.send("session.update", session={"type": "realtime", "instructions": "Be kind."})
        assert (await after.wait_for("session.updated"))["session"]["instructions"] == "Be kind."
    (agent,) = gateways.sessions[1]
    assert agent.start.system_prompt == "Be brief."
    said = [message.content for message in agent.messages if message.role == "user"]
    assert said == ["hello", "bye"]
    assert "error" not in after.kinds()


async def test_items_and_settings_that_no_checkpoint_has_reach_the_agent(gateways):
    await gateways.start()
    await gateways.start()
    async with opened(gateways.urls[0]) as client:
        await until(lambda: gateways.sessions[0])
        lose_from(gateways.sessions[0][0], protocol.Checkpoint, 1)
        await client.add("hello")
        await client.send("session.update", session={"type": "realtime", **BELLA})
        await until(lambda: gateways.sessions[0][0].settings.voice)
        await stored(gateways, client)
        gateways.lines[0].cut()
    async with connected(gateways.urls[1], client.id) as after:
        await after.say("bye")
        assert (await after.answer())[0] == "completed"
    (agent,) = gateways.sessions[1]
    said = [message.content for message in agent.messages if message.role == "user"]
    assert (said, agent.settings.voice) == (["hello", "bye"], "bella")
    assert agent.start.voice is None


async def test_an_answer_that_is_cut_begins_anew_in_a_response_of_its_own(gateways):
    await gateways.start()
    await gateways.start()
    async with opened(gateways.urls[0]) as client:
        await until(lambda: gateways.sessions[0])
        lose_from(gateways.sessions[0][0], protocol.Audio, 3)
        await client.say("hello")
        cut = (await client.wait_for("response.created"))["response"]["id"]
        for _ in range(2):
            part = await client.wait_for("response.output_audio.delta")
        await stored(gateways, client)
        gateways.lines[0].cut()
    async with connected(gateways.urls[1], client.id) as after:
        end = (await after.wait_for("response.done"))["response"]
        assert (end["id"], end["status"]) == (cut, "cancelled")
        assert [item["status"] for item in end["output"]] == ["incomplete"]
        assert await after.answer() == ("completed", "You said hello.")
        done = after.events[-1]["response"]
        assert done["id"] != cut
        audio = b"".join(
            base64.b64decode(event["delta"])
            for event in after.events
            if event["type"] == "response.output_audio.delta"
        )
        assert np.frombuffer(audio, "<i2").tolist() == np.repeat([1, 2, 3], 960).tolist()
        # The cut item is of the past: nothing of the new answer is removed with it.
        place = {"item_id": part["item_id"], "content_index": 0, "audio_end_ms": 0}
        await after.send("conversation.item.truncate", **place)
        await after.wait_for("conversation.item.truncated")
    assert gateways.sessions[1][0].messages[-1].content == "You said hello."


async def test_a_function_is_called_once(gateways):
    await gateways.start()
    await gateways.start()
    async with opened(gateways.urls[0], tools=[LOOK]) as client:
        await client.say("9")
        await client.wait_for("response.done")
        (call,) = client.events[-1]["response"]["output"]
        await stored(gateways, client)
        gateways.lines[0].cut()
    async with connected(gateways.urls[1], client.id) as after:
        await after.wait_for("session.created")
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "42"}
        await after.send("conversation.item.create", item=output)
        await after.send("response.create")
        assert await after.answer() == ("completed", "You said 9 42.")
    assert "response.function_call_arguments.done" not in after.kinds()


async def test_a_function_whose_call_was_lost_with_the_gateway_is_called(gateways):
    await gateways.start()
    await gateways.start()
    async with opened(gateways.urls[0], tools=[LOOK]) as client:
        await until(lambda: gateways.sessions[0])
        # Of the call the gateway has the checkpoint only.
        lose_from(gateways.sessions[0][0], protocol.ToolRequest, 1)
        await client.say("9")
        await until(lambda: gateways.sessions[0][0].state.agent is not None)
        await stored(gateways, client)
        gateways.lines[0].cut()
    async with connected(gateways.urls[1], client.id) as after:
        call = await after.wait_for("response.function_call_arguments.done")
        assert call["name"] == "look"
        assert (await after.answer())[0] == "completed"


async def test_the_last_connection_has_the_session(gateways, keys):
    (mine, _), security = keys
    one = await gateways.start(security=security)
    async with opened(one.url, mine) as client:
        await stored(gateways, client)
        async with connected(one.url, client.id, mine) as after:
            await after.wait_for("session.created")
            assert await closed(client.socket) == (1008, "taken_over")
            await after.say("hello")
            assert (await after.answer())[0] == "completed"
    # A client that has closed its connection may come back, too.
    async with connected(one.url, client.id, mine) as after:
        await after.say("bye")
        assert (await after.answer())[0] == "completed"
    said = [message.content for message in gateways.sessions[0][-1].messages if message.role == "user"]
    assert said == ["hello", "bye"]


async def test_a_client_secret_opens_its_session_again(gateways, keys):
    (mine, _), security = keys
    one = await gateways.start(security=security)
    headers = {"Authorization": f"Bearer {mine}"}
    secret = (await one.http.post("/v1/realtime/client_secrets", headers=headers)).json()["value"]
    async with opened(one.url, secret) as client:
        await stored(gateways, client)
    for credential in (secret, mine):
        async with connected(one.url, client.id, credential) as after:
            assert (await after.wait_for("session.created"))["session"]["id"] == client.id


async def test_a_gateway_that_shuts_down_leaves_its_sessions_to_others(gateways):
    await gateways.start()
    await gateways.start()
    async with opened(gateways.urls[0]) as client:
        await client.say("hello")
        await client.answer()
        await gateways.all[0].gateway.calls.drain(0)
        assert await closed(client.socket) == (1001, "going_away")
    async with connected(gateways.urls[1], client.id) as after:
        await after.wait_for("session.created")
        await after.say("bye")
        assert await after.answer() == ("completed", "You said bye.")


async def test_another_principal_gets_no_session(gateways, keys):
    (mine, others), security = keys
    one = await gateways.start(security=security)
    two = await gateways.start(security=security)
    async with opened(one.url, mine) as client:
        await stored(gateways, client)
        for gateway in (one, two):
            assert await refused(gateway.url, client.id, others) == REFUSED
        await client.say("hello")  # it was not taken
        assert (await client.answer())[0] == "completed"


@pytest.mark.parametrize("session_id", ["", "sess_1", "sess_" + "a" * 21, "gateway-0_" + "a" * 36])
async def test_an_unknown_session_is_refused_with_an_error_of_openai(gateways, session_id):
    one = await gateways.start()
    assert await refused(one.url, session_id) == REFUSED


async def test_neither_the_store_nor_the_audit_log_shows_how_to_come_back(gateways, caplog):
    caplog.set_level(logging.INFO)
    one = await gateways.start()
    async with opened(one.url) as client:
        await stored(gateways, client)
        async with connected(one.url, client.id) as after:
            await after.wait_for("session.created")
    assert list(gateways.memory.entries) == [name_in(client.id)]
    assert "session_resumed" in caplog.text
    assert client.id not in caplog.text
    assert client.id not in name_in(client.id)


async def test_a_store_that_is_away_asks_to_try_again(gateways):
    one = await gateways.start()
    gateways.memory.is_away = True
    unavailable = "takeover_unavailable"
    assert await refused(one.url, "sess_" + "a" * 21) == (unavailable, 1013, unavailable)


async def test_neither_api_takes_sessions_of_the_other(gateways):
    one = await gateways.start()
    async with opened(one.url) as client:
        await stored(gateways, client)
        answer = await one.http.post("/v1/sessions", json={"resume": {"token": client.id}})
        assert (answer.status_code, answer.json()["error"]["code"]) == (410, "not_resumable")
    session_id = await one.create(checkpoints=True)
    async with one.stream(session_id) as socket:
        token = (await receive(socket, "connected"))["resumption_token"]
        await receive(socket, "checkpoint")
        assert await refused(one.url, token) == REFUSED


async def test_a_session_lasts_no_longer_on_another_connection(gateways, monkeypatch):
    one = await gateways.start()
    async with opened(one.url) as client:
        await stored(gateways, client)
        later = SimpleNamespace(time=lambda: 1e12)
        monkeypatch.setattr("parley_gateway.apis.realtime.resumption.time", later)
        assert await refused(one.url, client.id) == REFUSED


async def test_a_call_that_the_agent_has_ended_is_over(gateways):
    one = await gateways.start()
    async with opened(one.url) as client:
        await stored(gateways, client)
        gateways.sessions[0][0].stream.say(protocol.Closed(reason="agent_ended"))
        await closed(client.socket)
        await until(lambda: gateways.memory.entries[name_in(client.id)][1] is None)
    assert await refused(one.url, client.id) == REFUSED
