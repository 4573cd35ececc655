"""WebRTC calls whose client comes back with another offer, and who may not come back."""

import httpx
import pytest
from listening_gateway import until
from rtc_client import RtcClient, calling, post_offer
from test_realtime_taken_over import lose_from

from parley import protocol


@pytest.fixture
async def https(gateways):
    """HTTP clients of two gateways."""
    for _ in range(2):
        await gateways.start()
    clients = [httpx.AsyncClient(base_url=one.url, timeout=20) for one in gateways.all]
    yield clients
    for client in clients:
        await client.aclose()


def session_id(client):
    return next(one["session"]["id"] for one in client.events if one["type"] == "session.created")


async def say(client, text):
    since = len(client.events)
    content = [{"type": "input_text", "text": text}]
    client.send("conversation.item.create", item={"type": "message", "role": "user", "content": content})
    client.send("response.create")
    return await client.receive("response.done", since)


async def stored(gateways, client):
    writes = gateways.memory.writes
    since = len(client.events)
    client.send("conversation.item.retrieve", item_id="none")
    await client.receive("error", since)
    await until(lambda: gateways.memory.writes > writes)


async def test_a_call_goes_on_at_another_gateway(gateways, https):
    async with calling(https[0]) as client:
        client.send("session.update", session={"type": "realtime", "instructions": "Be brief."})
        await client.receive("session.updated")
        await say(client, "hello")
        await stored(gateways, client)
        # The first gateway has not noticed.
        async with calling(https[1], resumes=session_id(client)) as after:
            created = after.events[0]["session"]
            assert (created["id"], created["instructions"]) == (session_id(client), "Be brief.")
            await say(after, "bye")
    (agent,) = gateways.sessions[1]
    said = [message.content for message in agent.messages if message.role == "user"]
    assert said == ["hello", "bye"]


async def test_an_offer_takes_a_call_over_at_the_same_gateway(gateways, https):
    async with calling(https[0]) as client:
        await client.open_session()
        await say(client, "hello")
        await stored(gateways, client)
        async with calling(https[0], resumes=session_id(client)) as after:
            await say(after, "bye")
            # The old connection ends.
            await client.until(lambda: client.channel.readyState == "closed")
    assert len(gateways.sessions[0]) == 2


async def test_an_answer_that_was_cut_begins_anew(gateways, https):
    async with calling(https[0]) as client:
        await client.open_session()
        lose_from(gateways.sessions[0][0], protocol.Audio, 3)
        content = [{"type": "input_text", "text": "hello"}]
        client.send("conversation.item.create", item={"type": "message", "role": "user", "content": content})
        client.send("response.create")
        await client.receive("output_audio_buffer.started")
        await stored(gateways, client)
        async with calling(https[1], resumes=session_id(client)) as after:
            first = await after.receive("response.done")
            assert first["response"]["status"] == "cancelled"
            since = after.events.index(first) + 1
            second = await after.receive("response.done", since)
            assert second["response"]["status"] == "completed"
            assert second["response"]["id"] != first["response"]["id"]


async def test_a_call_that_was_hung_up_does_not_go_on(gateways, https):
    async with calling(https[0]) as client:
        await client.open_session()
        await stored(gateways, client)
        assert (await https[0].post(f"{client.location}/hangup")).status_code == 200
        await until(lambda: not gateways.all[0].gateway.calls.count)
        answer = await refused(https[1], session_id(client))
    assert (answer.status_code, answer.json()["error"]["code"]) == (410, "not_resumable")


async def refused(http, wanted):
    other = RtcClient(http)
    try:
        await other.peer.setLocalDescription(await other.peer.createOffer())
        return await post_offer(http, other.peer.localDescription.sdp, wanted)
    finally:
        await other.close()


async def test_unknown_sessions_do_not_go_on(gateways, https):
    answer = await refused(https[0], "sess_" + "A" * 21)
    assert (answer.status_code, answer.json()["error"]["code"]) == (410, "not_resumable")
    assert gateways.all[0].gateway.calls.count == 0
