"""Servers of clients that join WebRTC calls by WebSocket."""

import json
from contextlib import asynccontextmanager

import pytest
from listening_gateway import closed, until
from openai_session import check_event
from resuming_agent import serve_session
from rtc_client import calling
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from parley_gateway.apis.realtime.webrtc import calls
from parley_gateway.security.keys import new_key


class Joined:
    """One connection."""

    def __init__(self, socket):
        self.socket = socket

    async def send(self, kind, **fields):
        await self.socket.send(json.dumps({"type": kind, **fields}))

    async def wait_for(self, kind):
        while True:
            event = json.loads(await self.socket.recv())
            check_event(event)
            if event["type"] == kind:
                return event


def of(client, kind):
    return [event for event in client.events if event["type"] == kind]


def connecting(gateway, call_id, **options):
    return connect(f"{gateway.ws_url}/v1/realtime?call_id={call_id}", **options)


@asynccontextmanager
async def joined(gateway, client):
    async with connecting(gateway, client.location.rpartition("/")[2]) as socket:
        yield Joined(socket)


async def test_a_server_hears_and_steers_a_call(gateway):
    one = await gateway(serve_session)
    async with calling(one.http) as client, joined(one, client) as server:
        created = await server.wait_for("session.created")
        assert created["session"]["id"] == of(client, "session.created")[0]["session"]["id"]
        await server.send("session.update", session={"type": "realtime", "instructions": "Be kind."})
        assert (await server.wait_for("session.updated"))["session"]["instructions"] == "Be kind."
        await client.until(lambda: of(client, "session.updated"))
        content = [{"type": "input_text", "text": "hello"}]
        await server.send(
            "conversation.item.create", item={"type": "message", "role": "user", "content": content}
        )
        client.send("response.create")
        await server.wait_for("response.created")


async def test_an_error_goes_to_who_has_caused_it(gateway):
    one = await gateway(serve_session)
    async with calling(one.http) as client, joined(one, client) as server:
        await server.send("nonsense", event_id="e1")
        assert (await server.wait_for("error"))["error"]["event_id"] == "e1"
        await server.send("session.update", session={"type": "realtime", "instructions": "Be kind."})
        await client.until(lambda: of(client, "session.updated"))
        assert of(client, "error") == []


async def test_a_call_outlives_its_server_and_not_the_other_way(gateway):
    one = await gateway(serve_session)
    async with calling(one.http) as client:
        async with joined(one, client) as server:
            await server.wait_for("session.created")
        async with joined(one, client) as server:
            await server.wait_for("session.created")
            await client.peer.close()
            assert (await closed(server.socket))[0] == 1000


async def test_servers_of_a_call_are_few(gateway, monkeypatch):
    monkeypatch.setattr(calls, "_MAX_JOINED", 1)
    one = await gateway(serve_session)
    async with calling(one.http) as client, joined(one, client) as first:
        await first.wait_for("session.created")
        async with joined(one, client) as second:
            assert (await second.wait_for("error"))["error"]["code"] == "overloaded"
            assert await closed(second.socket) == (1013, "overloaded")
        await first.send("session.update", session={"type": "realtime"})
        await first.wait_for("session.updated")


async def test_unknown_calls_are_not_joined(gateway):
    one = await gateway(serve_session)
    with pytest.raises(InvalidStatus) as caught:
        await connecting(one, f"rtc_{one.gateway.instance}_x")
    assert caught.value.response.status_code == 404


async def test_calls_of_others_are_not_joined(gateway, tmp_path):
    keys = [new_key(name, ["agent"]) for name in ("one", "other")]
    (tmp_path / "keys.toml").write_text("".join(f"{key.line}\n" for key in keys))
    one = await gateway(serve_session, security={"keys_file": str(tmp_path / "keys.toml")})
    one.http.headers["Authorization"] = f"Bearer {keys[0].secret}"
    async with calling(one.http) as client:
        call_id = client.location.rpartition("/")[2]
        await until(lambda: of(client, "session.created"))
        token = (await one.http.post("/v1/realtime/client_secrets", json={})).json()["value"]
        for secret, status in ((keys[1].secret, 403), (token, 403), ("nonsense", 401)):
            with pytest.raises(InvalidStatus) as caught:
                await connecting(one, call_id, additional_headers={"Authorization": f"Bearer {secret}"})
            assert caught.value.response.status_code == status
