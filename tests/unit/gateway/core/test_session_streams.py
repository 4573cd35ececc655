"""A session's stream: both directions, and every way to end it."""

import asyncio
import json

import numpy as np
import pytest
from fake_agent import serve
from listening_gateway import closed, frame_of, receive, until
from websockets.exceptions import InvalidStatus

from parley import protocol
from parley.errors import (
    ModelUnavailableError,
    TooManySessionsError,
    UnknownToolCallError,
    UnsupportedVoiceError,
)
from parley_client.errors import ConnectError
from parley_gateway.apis.sessions.messages import FROM_CLIENT
from parley_gateway.apis.sessions.stream import _SEND
from parley_gateway.websocket import refuse

WORDS = protocol.Audio(
    turn=1, response_id="r1", offset_ms=40, sample_rate=22_050, samples=3, text="Hello there"
)


async def speaking(stream):
    """Says three samples for every frame with audio."""
    await serve(stream, lambda frame: frame.audio and stream.say(WORDS, np.array([1, -2, 300], np.int16)))


async def test_the_first_message_tells_what_to_send_and_to_expect(gateway):
    one = await gateway()
    async with one.stream() as socket:
        assert socket.subprotocol == "parley.v1"
        connected = json.loads(await socket.recv())
    assert connected == {
        "type": "connected",
        "session_id": socket.session_id,
        "protocol_version": protocol.PROTOCOL_VERSION,
        "encoding": "pcm16",
        "input_sample_rate": 16_000,
        "output_sample_rate": 22_050,
        "max_message_bytes": one.settings.limits.frame_bytes,
        "resumed": False,
        "resumption_token": None,
    }


async def test_audio_goes_both_ways_with_its_words_before_it(gateway):
    one = await gateway(speaking)
    async with one.stream() as socket:
        await socket.send(b"\x01\x00\x02\x00")
        audio = await receive(socket, "audio")
        samples = await socket.recv()
    assert (audio["response_id"], audio["offset_ms"], audio["text"]) == ("r1", 40, "Hello there")
    assert samples == np.array([1, -2, 300], "<i2").tobytes()
    assert (await frame_of(one.agents[0], lambda frame: frame.audio)).audio == b"\x01\x00\x02\x00"


async def test_audio_without_samples_has_no_binary_message(gateway):
    def say(stream, _):
        stream.say(
            protocol.Audio(turn=1, response_id="r", offset_ms=0, sample_rate=22_050, samples=0, text="x")
        )
        stream.say(protocol.AgentState(state="listening"))

    async def agent(stream):
        await serve(stream, lambda frame: say(stream, frame))

    one = await gateway(agent)
    async with one.stream() as socket:
        await socket.send(json.dumps({"type": "text", "text": "hi"}))
        await receive(socket, "audio")
        assert json.loads(await socket.recv()) == {"type": "state", "state": "listening"}


@pytest.mark.parametrize(
    "message",
    [
        {"type": "tool_response", "call_id": "c", "output": {"x": 1}},
        {"type": "control", "action": "mute"},
        {"type": "control", "action": "unmute"},
        {"type": "playback", "response_id": "r", "played_ms": 5},
        {"type": "text", "text": "hi"},
        {"type": "dtmf", "digits": "1#"},
        {"type": "say", "text": "hi", "interruptible": False},
        {"type": "update", "system_prompt": "Be brief."},
        {"type": "commit"},
        {"type": "discard"},
        {"type": "respond", "use_tools": False},
        {"type": "remember", "role": "user", "text": "hi"},
        {"type": "interrupt", "response_id": "r"},
        {"type": "truncate", "response_id": "r", "played_ms": 3},
    ],
    ids=lambda message: message["type"],
)
async def test_every_message_reaches_the_agent(gateway, message):
    async def agent(stream):
        stream.say(protocol.Connected(session_id="fake", output_sample_rate=22_050))
        stream.say(protocol.ToolRequest(turn=1, call_id="c", name="f", arguments={}))
        while (frame := await stream.frames.get()) is not None:
            stream.acknowledge(frame)
            if frame.end:
                stream.hang_up()
        stream.end()

    one = await gateway(agent)
    async with one.stream() as socket:
        await receive(socket, "tool_request")
        await socket.send(json.dumps(message))
        seen = await frame_of(one.agents[0], lambda frame: frame.message and not frame.start)
    assert protocol.decode_message(seen.message) == protocol.decode_message(json.dumps(message).encode())


def test_every_kind_of_message_is_handled():
    assert set(_SEND) == set(FROM_CLIENT)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("{", "invalid_message"),
        ('{"type": "start"}', "invalid_message"),
        ('{"type": "text", "text": ""}', "invalid_message"),
        ('{"type": "text", "text": "a", "more": 1}', "invalid_message"),
        ("[" * 10_000, "invalid_message"),
    ],
)
async def test_a_bad_message_is_answered_and_the_session_goes_on(gateway, message, code):
    one = await gateway(speaking)
    async with one.stream() as socket:
        await socket.send(message)
        assert (await receive(socket, "error"))["code"] == code
        await socket.send(bytes(320))
        await receive(socket, "audio")


async def asking(stream):
    """Asks for a tool at every text."""
    request = protocol.ToolRequest(turn=1, call_id="c", name="f", arguments={})
    await serve(stream, lambda frame: b'"text"' in frame.message and stream.say(request))


async def test_an_answer_of_a_tool_that_was_refused_may_be_sent_again(gateway):
    one = await gateway(asking)
    async with one.stream() as socket:
        await socket.send(json.dumps({"type": "text", "text": "hi"}))
        await receive(socket, "tool_request")
        for output in ("x" * 300_000, "x"):
            await socket.send(json.dumps({"type": "tool_response", "call_id": "c", "output": output}))
        assert (await receive(socket, "error"))["code"] == "invalid_message"
        seen = await frame_of(one.agents[0], lambda frame: b"tool_response" in frame.message)
        assert protocol.decode_message(seen.message) == protocol.ToolResponse(call_id="c", output="x")
        assert (await one.status(socket.session_id))["pending_tools"] == []


async def test_progress_of_a_tool_leaves_its_answer_pending(gateway):
    one = await gateway(asking)
    async with one.stream() as socket:
        await socket.send(json.dumps({"type": "text", "text": "hi"}))
        await receive(socket, "tool_request")
        for fields in ({"output": "half", "final": False}, {"output": "all"}):
            pending = (await one.status(socket.session_id))["pending_tools"]
            assert [tool["call_id"] for tool in pending] == ["c"]
            await socket.send(json.dumps({"type": "tool_response", "call_id": "c", **fields}))
            text = fields["output"].encode()
            await frame_of(one.agents[0], lambda frame, text=text: text in frame.message)
        assert (await one.status(socket.session_id))["pending_tools"] == []


async def test_the_agent_decides_about_an_answer_that_no_tool_request_waits_for(gateway):
    """It drops one that crosses the cancellation, and refuses the others."""

    async def cancelling(stream):
        ids = {"turn": 1, "call_id": "c"}
        refusal = protocol.ErrorEvent.of(UnknownToolCallError("never made"))

        def answer(frame):
            if b'"text"' in frame.message:
                stream.say(protocol.ToolRequest(**ids, name="f", arguments={}))
                stream.say(protocol.ToolCancelled(**ids, reason="interrupted"))
            elif b'"none"' in frame.message:
                stream.say(refusal)

        await serve(stream, answer)

    one = await gateway(cancelling)
    async with one.stream() as socket:
        await socket.send(json.dumps({"type": "text", "text": "hi"}))
        await receive(socket, "tool_cancelled")
        for call_id in ("c", "none"):
            await socket.send(json.dumps({"type": "tool_response", "call_id": call_id}))
        error = await receive(socket, "error")
        assert (error["code"], error["message"]) == ("unknown_tool_call", "never made")
    seen = [frame.message for frame in one.agents[0].streams[0].seen if b"tool_response" in frame.message]
    assert [protocol.decode_message(one).call_id for one in seen] == ["c", "none"]


async def test_a_hangup_is_answered_with_the_call_s_own_end(gateway):
    one = await gateway()
    async with one.stream() as socket:
        await socket.send(json.dumps({"type": "control", "action": "hangup"}))
        assert (await receive(socket, "closed"))["reason"] == "ended"
        assert await closed(socket) == (1000, "ended")
    assert (await one.status(socket.session_id))["state"] == "over"


async def test_a_client_that_vanishes_ends_the_call(gateway):
    one = await gateway()
    async with one.stream() as socket:
        await receive(socket, "connected")
        socket.transport.abort()
    await frame_of(one.agents[0], lambda frame: frame.end)
    await until(lambda: one.gateway.calls.count == 0)
    assert (await one.status(socket.session_id))["reason"] == "disconnected"


async def test_lost_server_is_reported_once_and_closes_the_stream(gateway):
    async def agent(stream):
        await stream.frames.get()
        stream.say(protocol.Connected(session_id="fake", output_sample_rate=22_050))
        await stream.frames.get()
        stream.say(protocol.SpeechStarted(at_ms=0))  # without a checkpoint it cannot go on elsewhere
        stream.fail(ModelUnavailableError("gone"))

    one = await gateway(agent)
    async with one.stream() as socket:
        await receive(socket, "connected")
        await socket.send(bytes(320))
        error = await receive(socket, "error")
        assert (error["code"], error["retryable"]) == ("call_lost", True)
        assert await closed(socket) == (1011, "call_lost")


async def test_an_agent_that_closes_the_call_closes_the_stream(gateway):
    async def agent(stream):
        await stream.frames.get()
        stream.say(protocol.Connected(session_id="fake", output_sample_rate=22_050))
        stream.hang_up("silence")
        stream.end()

    one = await gateway(agent)
    async with one.stream() as socket:
        assert (await receive(socket, "closed"))["reason"] == "silence"
        assert await closed(socket) == (1000, "silence")


async def test_a_session_has_one_stream(gateway):
    one = await gateway()
    async with one.stream() as socket:
        await receive(socket, "connected")
        with pytest.raises(InvalidStatus) as refusal:
            async with one.stream(socket.session_id):
                pass
        assert refusal.value.response.status_code == 409
    with pytest.raises(InvalidStatus) as refusal:
        async with one.stream("no-such-session"):
            pass
    assert refusal.value.response.status_code == 404
    assert json.loads(refusal.value.response.body)["error"]["code"] == "session_not_found"


async def test_a_token_opens_its_session_and_no_other(gateway):
    one = await gateway()
    created = (await one.http.post("/v1/sessions")).json()
    other = await one.create()
    subprotocols = ["bearer", created["token"], "parley.v1"]
    with pytest.raises(InvalidStatus) as refusal:
        async with one.stream(other, subprotocols=subprotocols):
            pass
    assert refusal.value.response.status_code == 403
    async with one.stream(created["session_id"], subprotocols=subprotocols) as socket:
        assert socket.subprotocol == "parley.v1"
        await receive(socket, "connected")
        assert created["stream_url"] == f"{one.ws_url}/v1/sessions/{socket.session_id}/stream"


async def test_a_session_that_the_server_refuses_for_now_may_be_tried_again(gateway):
    one = await gateway((ConnectError("down"), speaking), servers={"attempts": 1})
    session_id = await one.create()
    with pytest.raises(InvalidStatus) as refusal:
        async with one.stream(session_id):
            pass
    assert refusal.value.response.status_code == 503
    assert int(refusal.value.response.headers["Retry-After"]) >= 1
    status = await one.status(session_id)
    assert (status["state"], status["reason"]) == ("waiting", "connect_failed")
    await until(lambda: one.gateway.servers.is_ready)
    async with one.stream(session_id) as socket:
        await receive(socket, "connected")


async def test_a_full_server_says_when_to_try_again(gateway):
    async def refuse(stream):
        await stream.frames.get()
        stream.say(protocol.ErrorEvent.of(TooManySessionsError("full", retry_after_s=11.25)))
        stream.hang_up("failed")
        while await stream.frames.get() is not None:
            pass
        stream.end()

    one = await gateway(refuse)
    session_id = await one.create()
    with pytest.raises(InvalidStatus) as refusal:
        async with one.stream(session_id):
            pass
    answer = refusal.value.response
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "12")
    assert json.loads(answer.body)["error"]["code"] == "too_many_sessions"


async def test_a_refusal_on_its_way_does_not_end_the_next_stream(gateway, monkeypatch):
    may_connect = asyncio.Event()
    later = []

    async def hesitant(stream):
        await may_connect.wait()
        await serve(stream)

    one = await gateway((ConnectError("down"), hesitant), servers={"attempts": 1})
    session_id = await one.create()

    async def connect_again():
        async with one.stream(session_id) as socket:
            await receive(socket, "connected")
            return await one.status(session_id)

    async def refuse_late(*arguments):
        if not later:
            await until(lambda: one.gateway.servers.is_ready)
            later.append(asyncio.create_task(connect_again()))
            await until(lambda: one.agents[0].streams)
        await refuse(*arguments)

    monkeypatch.setattr("parley_gateway.apis.sessions.stream.refuse", refuse_late)
    with pytest.raises(InvalidStatus, match="503"):
        async with one.stream(session_id):
            pass
    may_connect.set()
    assert (await later[0])["state"] == "open"


async def test_a_session_that_the_server_refuses_for_good_is_over(gateway):
    one = await gateway(UnsupportedVoiceError("no such voice"))
    session_id = await one.create(voice="missing")
    with pytest.raises(InvalidStatus) as refusal:
        async with one.stream(session_id):
            pass
    assert refusal.value.response.status_code == 400
    assert (await one.status(session_id))["reason"] == "unsupported_voice"


async def test_options_reach_the_agent(gateway):
    one = await gateway()
    session_id = await one.create(
        greeting="Hello.", output_sample_rate=8_000, turn={"eagerness": "patient"}, tools=[{"name": "f"}]
    )
    async with one.stream(session_id) as socket:
        await receive(socket, "connected")
    start = protocol.decode_message(one.agents[0].streams[0].seen[0].message)
    assert start == protocol.Start(
        greeting="Hello.",
        output_sample_rate=8_000,
        turn=protocol.TurnOptions(eagerness="patient"),
        tools=[protocol.Tool(name="f")],
        checkpoints=True,
    )


async def test_many_sessions_leave_nothing_behind(gateway):
    one = await gateway(speaking, rates={"ip_sessions": "", "key_sessions": ""})

    async def hold(way):
        async with one.stream() as socket:
            await socket.send(bytes(320))
            await receive(socket, "audio")
            if way == "hangup":
                await socket.send(json.dumps({"type": "control", "action": "hangup"}))
                await closed(socket)
            elif way == "vanish":
                socket.transport.abort()

    await hold("leave")
    await until(lambda: one.gateway.calls.count == 0)
    before = len(asyncio.all_tasks())
    for _ in range(5):
        await asyncio.gather(*(hold(way) for way in ("hangup", "vanish", "leave") * 3))
    await until(lambda: one.gateway.calls.count == 0)
    # The agents are the test's own, and end with it.
    await until(lambda: len(asyncio.all_tasks()) <= before)
    assert [server.users for server in one.gateway.servers.all] == [0]
    assert await one.metric("parley_gateway_calls") == 0
