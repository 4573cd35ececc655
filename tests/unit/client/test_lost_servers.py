"""A call that has lost its server: how it ends, when it begins again, and what is kept meanwhile."""

from __future__ import annotations

from contextlib import suppress

import pytest
from fake_agent import FakeAgent
from moving_call import Conversation, moving_call
from resuming_agent import CutStream, Servers, Session

from parley import protocol
from parley.errors import DeadlineExceededError, ModelUnavailableError, ParleyError, UnsupportedVoiceError
from parley_client import (
    NO_RETRY,
    Bounds,
    CallLostError,
    CallRefusedError,
    Deadlines,
    Reconnected,
    Reconnecting,
    connect,
)
from parley_client.transport import ServerReply


async def speak_to_the_end(line):
    async with line:
        await line.speak(0, 0)
        await line.until(lambda: line.call.is_over or line._reader.done())


async def test_a_call_is_lost_when_no_server_takes_it_in_time():
    gone = [ModelUnavailableError("gone")] * 100
    servers = Servers(CutStream(replies=3), *gone)
    line = Conversation(servers, deadlines=Deadlines(resume_s=0.5))
    with pytest.raises(CallLostError, match=r"Socket closed, and no server took the call within 0\.5 s"):
        await speak_to_the_end(line)
    assert [type(event) for event in line.got(Reconnecting, Reconnected)] == [Reconnecting]
    assert len(servers.call_ids) > 2
    await servers.stop()


async def test_servers_that_refuse_for_good_are_not_asked_for_ever():
    servers = Servers(CutStream(replies=3), *[UnsupportedVoiceError("no such voice")] * 100)
    line = Conversation(servers)
    with pytest.raises(CallRefusedError, match="no such voice") as refused:
        await speak_to_the_end(line)
    assert (refused.value.code, refused.value.retryable) == ("unsupported_voice", False)
    assert len(servers.call_ids) == 3
    await servers.stop()


async def test_every_server_is_asked_before_a_call_ends():
    refusals = [UnsupportedVoiceError("no such voice")] * 4
    async with moving_call(CutStream(replies=3), *refusals, names=list("abcdef")) as (line, servers):
        await line.speak(0, 0)
        await line.until(lambda: line.got(Reconnected))
        await line.speak(0, 1, 0)
        await line.answered(1)
    assert len(servers.call_ids) == 6


@pytest.mark.parametrize("names", ["a", "abcd"])
async def test_a_request_that_every_server_refuses_ends_the_call_at_once(names):
    def refuse(session: Session) -> None:
        acknowledge, on_frame = session.stream.acknowledge, session.on_frame
        session.stream.acknowledge = lambda one: acknowledge(one, "invalid_input: no" if one.message else "")
        session.on_frame = lambda one: None if one.message else on_frame(one)

    servers = Servers()
    servers.on_session = refuse
    line = Conversation(servers, names=list(names))

    async def ask():
        async with line:
            await line.speak(0, 0)
            await line.until(lambda: line.got(protocol.AgentState))
            line.call.send_text("hello")
            await line.until(lambda: line.call.is_over or line._reader.done())

    with pytest.raises(CallRefusedError, match="no") as refused:
        await ask()
    assert (refused.value.code, refused.value.retryable) == ("invalid_input", False)
    assert len(servers.sessions) == len(names)
    await servers.stop()


async def test_a_server_without_checkpoints_loses_the_call_as_ever():
    async def breaks(stream):
        await stream.frames.get()
        stream.say(protocol.Connected(session_id="s", output_sample_rate=8_000))
        stream.say(protocol.SpeechStarted(at_ms=0))
        stream.fail(ModelUnavailableError("Socket closed"))

    agent = FakeAgent(breaks)
    async with connect(["a", "b"], transport=agent, resume=True, retry=NO_RETRY) as call:
        with pytest.raises(CallLostError, match="Socket closed"):
            async for _ in call:
                pass
    assert len(agent.streams) == 1


async def test_a_call_whose_server_is_lost_at_once_begins_again():
    async def dies(stream):
        await stream.frames.get()
        stream.say(protocol.Connected(session_id="s", output_sample_rate=8_000, greets=True))
        while (one := await stream.frames.get()) is not None:
            if one.message:
                stream.fail(ModelUnavailableError("Socket closed"))
            stream.acknowledge(one)

    servers = Servers()
    serve_well, servers._serve = servers._serve, dies
    line = Conversation(servers, greeting="Hello.", voice="a")
    async with line:
        servers._serve = serve_well
        await line.speak(0, 1, 2)
        line.call.send_text("hello")
        await line.until(lambda: line.got(Reconnected))
        await line.speak(0, 0)
        await line.answered(1)
        await line.call.hang_up()
    await servers.stop()
    (session,) = servers.sessions
    assert (session.start.resume, session.start.greeting, session.start.voice) == (None, "Hello.", "a")
    assert bytes(session.audio) == line.audio
    assert len(line.got(protocol.Connected)) == 1
    assert [event.reason for event in line.got(Reconnecting, Reconnected)] == ["lost", "lost"]


async def test_hanging_up_without_a_server_ends_at_once():
    servers = Servers(CutStream(replies=3), *[ModelUnavailableError("gone")] * 1_000)
    line = Conversation(servers)

    async def hang_up():
        async with line:
            await line.speak(0, 0)
            await line.until(lambda: line.got(Reconnecting))
            assert await line.call.hang_up() is None
            assert line.call.is_over

    with pytest.raises(CallLostError):
        await hang_up()
    await servers.stop()


async def test_messages_without_a_server_reach_the_next_one_in_order():
    async with moving_call(
        CutStream(replies=3),
        *[ModelUnavailableError("gone")] * 4,
        bounds=Bounds(audio_ms=40, outage_ms=1_000),
    ) as (line, servers):
        await line.speak(0, 0)
        await line.until(lambda: line.got(Reconnecting))
        await line.speak(*[0] * 20, 7, 0)  # 440 ms, where 40 may wait while there is a server
        line.call.send_text("and this")
        await line.answered(2)
    session = servers.sessions[-1]
    assert line.audio.startswith(bytes(session.audio), session.begin)
    assert [m.content for m in session.messages if m.role == "user"] == ["7", "and this"]
    assert line.call.stats.dropped_audio_ms == 0


@pytest.mark.parametrize("names", [["a"], ["a", "b"]])
async def test_a_call_leaves_a_server_that_takes_no_audio(names):
    # It is left neither because it is silent, nor because it acknowledges nothing.
    patient = Deadlines(suspect_s=60, acknowledge_s=60, send_s=0.1)
    options = {"names": names, "deadlines": patient, "bounds": Bounds(audio_ms=40)}
    async with moving_call(**options) as (line, servers):
        await line.speak(0, 1)
        await line.until(lambda: line.got(protocol.Transcript))
        stalled = servers.streams[0]
        stalled.may_send.clear()
        await line.speak(*[2] * 10, 0)
        await line.answered(1)
        await line.call.hang_up()
        stalled.may_send.set()
    assert [event.reason for event in line.got(Reconnecting, Reconnected)] == ["lost", "lost"]
    session = servers.sessions[-1]
    assert line.audio.startswith(bytes(session.audio), session.begin)
    assert len(line.got(protocol.ResponseDone)) == 1


async def test_a_call_that_no_server_takes_audio_of_ends():
    servers = Servers()
    servers.on_session = lambda session: session.stream.may_send.clear()
    limits = Deadlines(suspect_s=60, acknowledge_s=60, send_s=0.05, resume_s=0.3, close_s=0.1)
    line = Conversation(servers, deadlines=limits, bounds=Bounds(audio_ms=40, outage_ms=40))

    async def speak_on():
        async with line:
            await line.until(lambda: line.got(protocol.AgentState))
            with pytest.raises(DeadlineExceededError, match="took no audio"):
                await line.speak(*[2] * 100)

    with suppress(ParleyError):
        await speak_on()
    assert len(servers.sessions) > 2
    for stream in servers.streams:
        stream.may_send.set()
    await servers.stop()


async def test_reports_of_playing_do_not_fill_the_queue_of_a_call_without_a_server():
    async with moving_call(
        CutStream(replies=20), *[ModelUnavailableError("gone")] * 4, bounds=Bounds(messages=4)
    ) as (line, _):
        await line.speak(0, 1, 0)
        await line.until(lambda: line.got(Reconnecting))
        for played_ms in range(20):
            line.call.report_playback("r1", played_ms)
        line.call.send_text("and this")
        await line.answered(2)


async def test_a_call_leaves_a_server_that_does_not_know_its_session():
    async with moving_call() as (line, servers):
        await line.speak(0, 1, 0)
        await line.answered(1)
        unknown = protocol.ErrorEvent(code="session_not_found", message="no session", retryable=False)
        servers.streams[0].replies.put_nowait(ServerReply("2", protocol.encode(unknown), final=True))
        await line.until(lambda: line.got(Reconnected))
        await line.speak(0, 2, 0)
        await line.answered(2)
    assert not line.got(protocol.ErrorEvent)
    assert [message.content for message in servers.sessions[-1].messages if message.role == "user"] == [
        "1",
        "2",
    ]


async def test_a_call_leaves_a_server_that_refuses_a_request():
    async with moving_call() as (line, servers):
        await line.speak(0, 0)
        stream = servers.streams[0]
        acknowledge = stream.acknowledge
        stream.acknowledge = lambda one: acknowledge(one, "Server is stopping" if one.message else "")
        on_frame = servers.sessions[0].on_frame
        servers.sessions[0].on_frame = lambda one: None if one.message else on_frame(one)
        line.call.send_text("hello")
        await line.answered(1)
    assert [event.reason for event in line.got(Reconnected)] == ["lost"]
    assert [message.content for message in servers.sessions[-1].messages if message.role == "user"] == [
        "hello"
    ]
