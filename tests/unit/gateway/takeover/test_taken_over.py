"""Sessions that go on at another gateway, with the client library in front."""

import asyncio
import json

import moving_call
import pytest
from gateways import Line
from listening_gateway import receive, until
from resuming_agent import frame, serve_session
from websockets.asyncio.client import connect

from parley import protocol
from parley_client import (
    AgentAudio,
    CallLostError,
    Reconnected,
    gateway_transport,
)


@pytest.fixture(params=["memory", "redis"])
def store(request, store):
    if request.param == "memory":
        return store
    return {"url": request.getfixturevalue("redis").url}


class Conversation(moving_call.Conversation):
    """A call by gateways, which keep its state."""

    def __init__(self, urls):
        super().__init__(None, urls, resume=None)

    def text(self):
        return "".join(event.text for event in self.got(protocol.ResponseText))

    async def wait_for(self, kind, count=1):
        await self.until(lambda: len(self.got(kind)) >= count)
        return self.got(kind)[count - 1]


def lose_messages(session):
    """From now on the messages of the client are lost with the gateway."""
    on_frame = session.on_frame
    session.on_frame = lambda one: None if one.message else on_frame(one)


async def test_a_call_goes_on_at_another_gateway_when_its_own_is_cut_off(gateways):
    await gateways.start()
    await gateways.start()
    async with Conversation(gateways.urls) as caller:
        for word in (1, 2):
            await caller.call.send_audio(frame(word))
            await caller.call.send_audio(frame(0))
            await caller.wait_for(protocol.TurnMetrics, word)
        await caller.call.send_audio(frame(3) + frame(4))
        await until(lambda: any("3 4" in event.text for event in caller.got(protocol.Transcript)))
        await until(lambda: gateways.sessions[0][-1].state.audio_ms >= 80)
        gateways.lines[0].cut()
        moved = await caller.wait_for(Reconnected)
        await caller.call.send_audio(frame(5) + frame(0))
        await caller.wait_for(protocol.TurnMetrics, 3)
        await until(lambda: gateways.all[0].gateway.calls.count == 0)
        history = caller.call.history
    assert moved.reason == "lost"
    (session,) = gateways.sessions[1]
    said = [message.content for message in session.messages if message.role == "user"]
    assert said == ["1", "2", "3 4 5"]
    assert caller.text() == "You said 1. You said 2. You said 3 4 5. "
    assert [event.turn for event in caller.got(protocol.ResponseDone)] == [1, 2, 3]
    assert len(caller.got(protocol.Connected)) == 1
    assert not caller.got(protocol.ErrorEvent)
    # The state of the session is the gateways' own.
    assert history is None or not history.messages


async def test_an_answer_goes_on_behind_what_came_of_it(gateways):
    await gateways.start()
    await gateways.start()
    async with Conversation(gateways.urls) as caller:
        session = gateways.sessions[0][0]
        say = session.stream.say
        count = 0

        def say_some(event, samples=None):
            nonlocal count
            count += isinstance(event, protocol.Audio)
            if count < 3:
                say(event, samples)

        session.stream.say = say_some
        await caller.call.send_audio(frame(1) + frame(2) + frame(0))
        await caller.wait_for(AgentAudio, 2)
        gateways.lines[0].cut()
        await caller.wait_for(protocol.ResponseDone)
        await caller.wait_for(protocol.TurnMetrics)
    assert caller.text() == "You said 1 2. "
    assert [event.offset_ms for event in caller.got(AgentAudio)] == [0, 40, 80, 120]
    assert {event.response_id for event in caller.got(AgentAudio)} == {"r1"}
    assert gateways.sessions[1][0].messages[-1].content == "You said 1 2."


async def test_a_tool_is_run_once(gateways):
    await gateways.start()
    await gateways.start()
    async with Conversation(gateways.urls) as caller:
        session = gateways.sessions[0][0]
        lose_messages(session)
        await caller.call.send_audio(frame(9) + frame(0))
        await until(lambda: caller.tools["look"] == 1)
        await until(lambda: any(b"tool_response" in one.message for one in session.stream.seen))
        gateways.lines[0].cut()
        await caller.wait_for(protocol.TurnMetrics)
    assert caller.tools["look"] == 1
    assert caller.text() == "You said 9 42. "


async def test_messages_come_once(gateways):
    await gateways.start()
    await gateways.start()
    async with Conversation(gateways.urls) as caller:
        caller.call.remember("system", "first")
        caller.call.send_text("hello")
        await caller.wait_for(protocol.TurnMetrics)
        session = gateways.sessions[0][0]
        lose_messages(session)
        caller.call.remember("system", "second")
        await until(lambda: any(b"second" in one.message for one in session.stream.seen))
        gateways.lines[0].cut()
        await caller.wait_for(Reconnected)
        caller.call.remember("system", "third")
        caller.call.send_text("bye")
        await caller.wait_for(protocol.TurnMetrics, 2)
    messages = [one.content for one in gateways.sessions[1][0].messages if one.role != "assistant"]
    assert messages == ["first", "hello", "second", "third", "bye"]


async def test_an_answer_that_no_tool_request_waits_for_is_counted_too(gateways):
    """The agent decides what becomes of it, at the next gateway as at the first."""
    await gateways.start()
    await gateways.start()
    async with Conversation(gateways.urls) as caller:
        caller.call.respond(protocol.ToolResponse(call_id="first"))
        caller.call.send_text("hello")
        await caller.wait_for(protocol.TurnMetrics)
        session = gateways.sessions[0][0]
        lose_messages(session)
        caller.call.respond(protocol.ToolResponse(call_id="second"))
        caller.call.remember("system", "note")
        await until(lambda: any(b"note" in one.message for one in session.stream.seen))
        gateways.lines[0].cut()
        await caller.wait_for(Reconnected)
        caller.call.send_text("bye")
        await caller.wait_for(protocol.TurnMetrics, 2)
    session = gateways.sessions[1][0]
    assert [one.content for one in session.messages if one.role != "assistant"] == ["hello", "note", "bye"]
    assert sum(b"tool_response" in one.message for one in session.stream.seen) == 1
    assert [event.message for event in caller.got(protocol.ErrorEvent)] == ["first", "second"]


async def test_a_call_moves_on_twice_and_with_one_name_for_all(gateways):
    await gateways.start()
    await gateways.start()
    await gateways.start()
    async with Conversation(gateways.urls) as caller:
        for number in (1, 2, 3):
            await caller.call.send_audio(frame(number) + frame(0))
            await caller.wait_for(protocol.TurnMetrics, number)
            if number < 3:
                gateways.lines[number - 1].cut()
                await caller.wait_for(Reconnected, number)
    assert caller.text() == "You said 1. You said 2. You said 3. "


async def test_a_gateway_that_does_not_notice_the_cut_loses_the_session(gateways, monkeypatch):
    monkeypatch.setattr(gateway_transport, "_PING_S", 0.2)
    await gateways.start()
    await gateways.start()
    async with Conversation(gateways.urls) as caller:
        await caller.call.send_audio(frame(1) + frame(0))
        await caller.wait_for(protocol.TurnMetrics)
        gateways.lines[0].freeze()
        await caller.wait_for(Reconnected)
        await until(lambda: gateways.all[0].gateway.calls.count == 1)
        # The first one notices that it is not the owner any more when it says that the session lives.
        await asyncio.wait_for(gateways.all[0].gateway.calls.drain(15), 15)
        await caller.call.send_audio(frame(2) + frame(0))
        await caller.wait_for(protocol.TurnMetrics, 2)
    assert caller.text() == "You said 1. You said 2. "
    assert await gateways.all[0].metric("parley_gateway_calls_lost_total") == 1


async def test_a_gateway_that_shuts_down_sends_its_calls_elsewhere(gateways):
    await gateways.start()
    await gateways.start()
    async with Conversation(gateways.urls) as caller:
        await caller.call.send_audio(frame(1) + frame(0))
        await caller.wait_for(protocol.TurnMetrics)
        draining = asyncio.create_task(gateways.all[0].gateway.calls.drain(20))
        moved = await caller.wait_for(Reconnected)
        async with asyncio.timeout(10):
            await draining
        await caller.call.send_audio(frame(2) + frame(0))
        await caller.wait_for(protocol.TurnMetrics, 2)
    assert moved.reason == "go_away"
    assert caller.text() == "You said 1. You said 2. "


async def test_without_another_gateway_the_call_goes_back_to_its_own(gateways):
    await gateways.start()
    await gateways.start()
    names = gateways.urls[:1]
    async with Conversation(names) as caller:
        await caller.call.send_audio(frame(1) + frame(0))
        await caller.wait_for(protocol.TurnMetrics)
        line = gateways.lines[0]
        line.cut()
        line.is_cut = False
        await caller.wait_for(Reconnected)
        await caller.call.send_audio(frame(2) + frame(0))
        await caller.wait_for(protocol.TurnMetrics, 2)
    assert caller.text() == "You said 1. You said 2. "
    assert len(gateways.sessions[0]) == 2


async def test_a_call_that_stays_until_the_end_of_the_drain_goes_on_elsewhere(gateways):
    await gateways.start()
    await gateways.start()
    async with Conversation(gateways.urls) as caller:
        await caller.call.send_audio(frame(1) + frame(0) + frame(2))
        await until(lambda: any(event.text == "2" for event in caller.got(protocol.Transcript)))
        await gateways.all[0].gateway.calls.drain(0)
        await caller.wait_for(Reconnected)
        await caller.call.send_audio(frame(3) + frame(0))
        await caller.wait_for(protocol.TurnMetrics, 2)
    assert caller.text() == "You said 1. You said 2 3. "
    assert not caller.got(protocol.Closed)


async def test_design_stream_goes_on_with_its_tool_request(gateways):
    one, two = await gateways.start(), await gateways.start()
    options = {"checkpoints": True, "tools": [{"name": "look"}]}
    made = await one.http.post("/v1/sessions?protocol=design", json=options)
    async with connect(made.json()["stream_url"]) as socket:
        token = (await receive(socket, "connected"))["resumption_token"]
        await socket.send(frame(9) + frame(0))
        request = await receive(socket, "tool_request")
    made = await two.http.post("/v1/sessions?protocol=design", json={"resume": {"token": token}})
    async with connect(made.json()["stream_url"]) as socket:
        assert (await receive(socket, "connected"))["resumed"]
        answer = {"type": "tool_response", "request_id": request["request_id"], "result": 42}
        await socket.send(json.dumps(answer))
        await until(lambda: gateways.sessions[1][0].messages[-1].content == "You said 9 42.")


async def test_without_a_store_the_call_is_lost(gateway):
    one = await gateway(serve_session)
    line = Line(int(one.url.rpartition(":")[2]))
    await line.start()

    async def call():
        async with Conversation([line.url]) as caller:
            await caller.call.send_audio(frame(1))
            await caller.wait_for(protocol.SpeechStarted)
            line.cut()
            await asyncio.wait_for(caller._reader, 10)

    with pytest.raises(CallLostError):
        await call()
    await line.stop()
