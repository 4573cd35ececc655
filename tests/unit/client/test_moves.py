"""A call that outlives its server, against agents that go on with sessions."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress

import pytest
from fake_agent import FakeAgent, FakeStream, serve
from resuming_agent import CutStream, Servers, Session, frame

from parley import protocol
from parley.errors import DeadlineExceededError, ModelUnavailableError, ParleyError, UnsupportedVoiceError
from parley_client import (
    NO_RETRY,
    AgentAudio,
    Bounds,
    CallLostError,
    CallRefusedError,
    ConnectError,
    Deadlines,
    Reconnected,
    Reconnecting,
    connect,
)
from parley_client.transport import ServerReply

LIMITS = Deadlines(connect_s=5, send_s=5, acknowledge_s=5, silence_s=30, consumer_s=5, close_s=5, resume_s=20)
SILENCE = frame(0)


class Conversation:
    """The application's side of a call, with all that it sent and got."""

    def __init__(self, servers, names=("a", "b"), deadlines=LIMITS, **options):
        self.events = []
        self.audio = b""
        self.tools = Counter()
        self._changed = asyncio.Event()

        async def look() -> str:
            """Look something up."""
            self.tools["look"] += 1
            await asyncio.sleep(0)
            return "42"

        self._connection = connect(
            names,
            transport=servers,
            resume=True,
            retry=NO_RETRY,
            tools=[look],
            deadlines=deadlines,
            **options,
        )

    async def __aenter__(self):
        self.call = await self._connection.__aenter__()
        self._reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *problem):
        await self._connection.__aexit__(*problem)
        async with asyncio.timeout(10):
            await self._reader

    async def _read(self):
        try:
            async for event in self.call:
                self.events.append(event)
                self._changed.set()
        finally:
            self._changed.set()

    async def until(self, condition):
        async with asyncio.timeout(20):
            while not condition():
                assert not self._reader.done(), self.events[-3:]
                self._changed.clear()
                await self._changed.wait()

    async def answered(self, turn):
        await self.until(
            lambda: self.got(protocol.TurnMetrics) and self.got(protocol.TurnMetrics)[-1].turn >= turn
        )

    def got(self, *kinds):
        return [event for event in self.events if isinstance(event, kinds)]

    async def speak(self, *words):
        for word in words:
            self.audio += frame(word)
            await self.call.send_audio(frame(word))


async def talk(line):
    """Every kind of turn, one after the other."""
    await line.speak(0, 0, 1, 2, 0, 0)
    await line.answered(1)
    line.call.send_text("hello")
    await line.answered(2)
    await line.speak(0, 9, 0)
    await line.answered(3)
    line.call.update(protocol.Update(voice="b"))
    line.call.remember("system", "night")
    line.call.say("Good bye.")
    await line.speak(0, 0)
    await line.answered(4)
    closed = await line.call.hang_up()
    assert closed == protocol.Closed(reason="ended")


ONCE = (
    protocol.Connected,
    protocol.Updated,
    protocol.ToolRequest,
    protocol.ToolCancelled,
    protocol.ResponseDone,
    protocol.Interrupted,
    protocol.TurnMetrics,
    protocol.TurnDecision,
    protocol.ErrorEvent,
    protocol.Closed,
)


def outcome(line, servers):
    """What must not depend on moves."""
    texts, audio = Counter(), Counter()
    for event in line.events:
        if isinstance(event, protocol.ResponseText):
            texts[event.response_id] = texts.get(event.response_id, "") + event.text
        elif isinstance(event, AgentAudio):
            audio[event.response_id] = (*audio.get(event.response_id, ()), (event.offset_ms, event.text))
    last = servers.sessions[-1]
    return {
        "texts": dict(texts),
        "audio": dict(audio),
        "finals": [(e.utterance, e.text) for e in line.got(protocol.Transcript) if e.is_final],
        "speech": [
            (type(e).__name__, e.at_ms) for e in line.got(protocol.SpeechStarted, protocol.SpeechStopped)
        ],
        "once": line.got(*ONCE),
        "history": last.messages,
        "voice": last.settings.voice,
        "tools": line.tools["look"],
    }


async def hold(*streams):
    servers = Servers(*streams)
    line = Conversation(servers)
    async with line:
        await talk(line)
    await servers.stop()
    assert servers.opened == servers.closed
    for session in servers.sessions:
        assert line.audio.startswith(bytes(session.audio), session.begin), "audio is not continuous"
    assert not line.got(protocol.Checkpoint, protocol.GoAway)
    return line, servers


async def uncut():
    """The outcome without a cut, and how many replies and frames there are until the user hangs up."""
    stream = CutStream()
    taken = []
    last = protocol.encode(protocol.TurnMetrics(turn=4))

    async def receive():
        taken.append(await FakeStream.receive(stream))
        return taken[-1]

    stream.receive = receive
    line, servers = await hold(stream)
    return (
        outcome(line, servers),
        [reply and reply.event for reply in taken].index(last),
        len(stream.seen) - 1,
    )


def check_moved(line, servers, expected, moves):
    assert len(servers.sessions) == moves + 1
    told = line.got(Reconnecting, Reconnected)
    assert [type(event) for event in told] == [Reconnecting, Reconnected] * moves
    assert {event.reason for event in told} <= {"lost"}
    assert line.call.stats.moves == moves
    found = outcome(line, servers)
    for name, value in expected.items():
        assert found[name] == value, f"{name} after {moves} moves"
    assert servers.call_ids == [line.call.id, *(f"{line.call.id}.{n + 1}" for n in range(moves))]
    for session in servers.sessions[1:]:
        assert session.start.checkpoints


async def test_a_call_goes_on_after_a_cut_behind_every_reply():
    expected, replies, _ = await uncut()
    assert replies > 70
    for cut in range(1, replies):  # with 1 the session begins again: there is no checkpoint
        line, servers = await hold(CutStream(replies=cut))
        check_moved(line, servers, expected, 1)


@pytest.mark.parametrize("arrives", [True, False])
async def test_a_call_goes_on_after_a_cut_at_every_frame(arrives):
    expected, _, frames = await uncut()
    assert frames > 8
    for cut in range(1, frames):
        line, servers = await hold(CutStream(frames=cut, arrives=arrives))
        check_moved(line, servers, expected, 1)


def closes(reason):
    """A stream whose next reply is ``closed``."""
    return lambda: ServerReply("start", protocol.encode(protocol.Closed(reason=reason)))


@pytest.mark.parametrize("end", [closes("shutdown"), closes("failed"), lambda: None])
async def test_a_call_goes_on_when_the_server_ends_the_session(end):
    expected, replies, _ = await uncut()
    for cut in range(2, replies, 7):
        stream = CutStream(replies=cut)
        stream.end = end
        line, servers = await hold(stream)
        check_moved(line, servers, expected, 1)


async def test_a_call_that_is_cut_again_and_again_loses_nothing():
    expected, _, _ = await uncut()
    for cuts in ([40, 3, 5], [52, 2, 2], [30, 9, 20]):
        line, servers = await hold(*(CutStream(replies=cut) for cut in cuts))
        check_moved(line, servers, expected, 3)


async def test_a_server_that_ends_the_call_for_the_users_sake_ends_it():
    stream = CutStream(replies=3)
    stream.end = closes("silence")
    servers = Servers(stream)
    line = Conversation(servers)
    async with line:
        await line.until(lambda: line.call.is_over)
    assert line.call.closed == protocol.Closed(reason="silence")
    assert len(servers.streams) == 1
    await servers.stop()


async def speak_to_the_end(line):
    async with line:
        await line.speak(0, 0)
        await line.until(lambda: line.call.is_over or line._reader.done())


async def test_a_call_is_lost_when_no_server_takes_it_in_time():
    gone = [ModelUnavailableError("gone")] * 100
    servers = Servers(CutStream(replies=3), *gone)
    line = Conversation(servers, deadlines=Deadlines(resume_s=0.5))
    with pytest.raises(CallLostError, match="Socket closed"):
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
    servers = Servers(CutStream(replies=3), *refusals)
    line = Conversation(servers, names=list("abcdef"))
    async with line:
        await line.speak(0, 0)
        await line.until(lambda: line.got(Reconnected))
        await line.speak(0, 1, 0)
        await line.answered(1)
        await line.call.hang_up()
    assert len(servers.call_ids) == 6
    await servers.stop()


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


async def test_what_is_sent_without_a_server_reaches_the_next_one_in_order():
    servers = Servers(CutStream(replies=3), *[ModelUnavailableError("gone")] * 4)
    line = Conversation(servers, bounds=Bounds(audio_ms=40, outage_ms=1_000))
    async with line:
        await line.speak(0, 0)
        await line.until(lambda: line.got(Reconnecting))
        await line.speak(*[0] * 20, 7, 0)  # 440 ms, where 40 may wait while there is a server
        line.call.send_text("and this")
        await line.answered(2)
        await line.call.hang_up()
    await servers.stop()
    session = servers.sessions[-1]
    assert line.audio.startswith(bytes(session.audio), session.begin)
    assert [m.content for m in session.messages if m.role == "user"] == ["7", "and this"]
    assert line.call.stats.dropped_audio_ms == 0


async def test_the_session_that_goes_on_has_the_newest_settings_and_the_progress():
    servers = Servers(CutStream(replies=22))
    line = Conversation(servers, system_prompt="be kind", greeting="Hello.")
    async with line:
        line.call.update(protocol.Update(voice="b"))
        await line.until(lambda: line.got(protocol.Updated))
        await line.speak(0, 0, 1, 0)
        await line.answered(1)
        await line.call.hang_up()
    await servers.stop()
    start = servers.sessions[1].start
    assert (start.system_prompt, start.voice, start.greeting) == ("be kind", "b", "Hello.")
    progress = start.resume.progress
    assert progress.response_id == "r1"
    assert "You said 1. ".startswith(progress.text)
    assert progress.audio_ms == 40 * len(progress.words)
    assert 0 <= progress.played_ms <= progress.audio_ms


# --- a server that asks, or answers no more --------------------------------------------------------


async def go_away(line, session, time_left_ms=60_000):
    moves = len(line.got(Reconnected))
    session.stream.say(protocol.GoAway(time_left_ms=time_left_ms))
    await line.until(lambda: len(line.got(Reconnected)) > moves)


async def test_a_call_leaves_a_server_that_stops_when_neither_side_speaks():
    servers = Servers()
    line = Conversation(servers)
    async with line:
        await line.speak(0, 1)
        await line.until(lambda: line.got(protocol.Transcript))  # the user speaks
        first = servers.sessions[0]
        first.stream.say(protocol.GoAway(time_left_ms=60_000))
        await line.speak(2)
        await line.until(lambda: len(line.got(protocol.Transcript)) >= 2)
        assert not line.got(Reconnecting)
        await line.speak(0, 0, 0)
        await line.until(lambda: line.got(Reconnected))
        await line.speak(0, 3, 0)
        await line.answered(2)
        await line.call.hang_up()
    await servers.stop()
    assert [event.reason for event in line.got(Reconnecting, Reconnected)] == ["go_away", "go_away"]
    old, new = servers.streams
    assert old.seen[-1].end
    assert not any(frame.audio for frame in old.seen[-1:])
    assert new.seen[0].start
    session = servers.sessions[1]
    assert line.audio.startswith(bytes(session.audio), session.begin)
    assert [m.content for m in session.messages if m.role == "user"] == ["1 2", "3"]
    assert len(line.got(protocol.ResponseDone)) == 2


async def test_a_call_leaves_a_server_that_stops_at_the_end_of_its_time():
    servers = Servers()
    line = Conversation(servers)
    async with line:
        await line.speak(0, 1, 2)
        await line.until(lambda: line.got(protocol.Transcript))
        await go_away(line, servers.sessions[0], time_left_ms=10)
        await line.speak(3, 0)
        await line.answered(1)
        await line.call.hang_up()
    await servers.stop()
    session = servers.sessions[1]
    assert [m.content for m in session.messages] == ["1 2 3", "You said 1 2 3."]
    assert len(line.got(protocol.SpeechStarted)) == 1


@pytest.mark.parametrize("second_ms", [0, 10])
async def test_the_newest_deadline_counts(second_ms):
    servers = Servers()
    line = Conversation(servers)
    async with line:
        await line.speak(0, 1, 2)
        await line.until(lambda: line.got(protocol.Transcript))
        servers.sessions[0].stream.say(protocol.GoAway(time_left_ms=60_000))
        await go_away(line, servers.sessions[0], time_left_ms=second_ms)
        await go_away(line, servers.sessions[1], time_left_ms=second_ms)  # the next server drains, too
        await line.speak(3, 0)
        await line.answered(1)
        await line.call.hang_up()
    await servers.stop()
    assert [m.content for m in servers.sessions[-1].messages] == ["1 2 3", "You said 1 2 3."]


async def test_a_call_stays_where_no_other_server_takes_it(monkeypatch):
    async def refuses(stream):
        await stream.frames.get()
        stream.say(protocol.ErrorEvent(code="too_many_sessions", message="full", retryable=True))
        stream.hang_up("failed")
        while await stream.frames.get() is not None:
            pass
        stream.end()

    servers = Servers(FakeStream(), ConnectError("no"))
    line = Conversation(servers)
    async with line:
        await line.speak(0, 0)
        first = servers.sessions[0]
        monkeypatch.setattr(servers, "_serve", refuses)
        first.stream.say(protocol.GoAway(time_left_ms=60_000))
        first.checkpoint()
        async with asyncio.timeout(10):
            while len(servers.call_ids) < 4:  # noqa: ASYNC110 - whatever changes it tells nobody
                await asyncio.sleep(0.01)
        await line.speak(0, 1, 0)
        await line.answered(1)
        await line.call.hang_up()
    await servers.stop()
    assert not line.got(Reconnecting, Reconnected, protocol.ErrorEvent)
    assert first.audio == line.audio
    assert line.call.closed == protocol.Closed(reason="ended")


QUICK = Deadlines(suspect_s=0.1)


class SilentStream(FakeStream):
    """A stream to a server that is cut off from the network when a test says so."""

    def __init__(self):
        super().__init__()
        self.connected = asyncio.Event()
        self.connected.set()

    async def receive(self):
        reply = await super().receive()
        await self.connected.wait()
        return reply


async def test_a_call_leaves_a_server_that_acknowledges_nothing():
    servers = Servers(SilentStream())
    line = Conversation(servers, deadlines=QUICK)
    async with line:
        await line.speak(0, 1)
        await line.until(lambda: line.got(protocol.Transcript))
        servers.streams[0].connected.clear()
        await line.speak(*[2] * 15, 0)
        await line.answered(1)
        await line.call.hang_up()
    await servers.stop()
    assert [event.reason for event in line.got(Reconnecting, Reconnected)] == ["silent", "silent"]
    session = servers.sessions[1]
    assert line.audio.startswith(bytes(session.audio), session.begin)
    assert len(line.got(protocol.SpeechStarted)) == len(line.got(protocol.ResponseDone)) == 1


async def test_a_slow_server_is_not_left_where_there_is_no_other():
    servers = Servers(SilentStream())
    line = Conversation(servers, names="a", deadlines=QUICK)
    async with line:
        await line.speak(0, 1)
        await line.until(lambda: line.got(protocol.Transcript))
        servers.streams[0].connected.clear()
        await line.speak(0)
        await asyncio.sleep(0.3)
        servers.streams[0].connected.set()
        await line.answered(1)
        await line.call.hang_up()
    await servers.stop()
    assert servers.opened == 1
    assert not line.got(Reconnecting)


# --- tools --------------------------------------------------------------------------------------------


async def test_a_tool_runs_on_while_the_call_moves():
    begun, may_end = asyncio.Event(), asyncio.Event()
    runs = 0

    async def look() -> str:
        """Look something up."""
        nonlocal runs
        runs += 1
        begun.set()
        await may_end.wait()
        return "42"

    servers = Servers()
    async with connect(["a", "b"], transport=servers, resume=True, tools=[look], deadlines=LIMITS) as call:
        await call.send_audio(frame(9) + frame(0))
        events = []

        async def until(kind):
            while not (events and isinstance(events[-1], kind)):
                events.append(await anext(call))

        await until(protocol.ToolRequest)
        await begun.wait()
        await asyncio.sleep(0.05)
        servers.streams[0].fail(ModelUnavailableError("Socket closed"))
        await until(Reconnected)
        may_end.set()
        await until(protocol.ResponseDone)
    await servers.stop()
    assert runs == 1
    assert "You said 9 42." in servers.sessions[1].messages[-1].content


async def test_an_application_that_reads_nothing_is_no_reason_to_move():
    def flood(session: Session) -> None:
        for _ in range(8):
            session.stream.say(protocol.AgentState(state="listening"))

    servers = Servers()
    servers.on_session = flood
    limits = Deadlines(suspect_s=0.05, consumer_s=5)
    async with connect(
        ["a", "b"], transport=servers, resume=True, deadlines=limits, bounds=Bounds(events=3)
    ) as call:
        await call.send_audio(SILENCE)
        call.mute()
        await asyncio.sleep(0.5)
        assert servers.opened == 1
    await servers.stop()


async def test_opening_tries_the_servers_in_their_order():
    servers = Servers(ConnectError("no"))
    async with connect(["a", "b"], transport=servers, retry=NO_RETRY):
        pass
    assert len(servers.call_ids) == 2
    assert not servers.sessions[0].start.checkpoints  # a transport of the application's own does not resume
    await servers.stop()
    with pytest.raises(ValueError, match="no server"):
        connect([])
    async with connect("a", transport=FakeAgent(serve)):
        pass


async def test_a_server_whose_network_is_cut_takes_nothing_either():
    servers = Servers(SilentStream())
    line = Conversation(servers, deadlines=QUICK)
    async with line:
        await line.speak(0, 1)
        await line.until(lambda: line.got(protocol.Transcript))
        stream = servers.streams[0]
        stream.connected.clear()
        stream.may_send.clear()
        await line.speak(0)
        await line.answered(1)
        await line.call.hang_up()
        assert [event.reason for event in line.got(Reconnected)] == ["silent"]
        stream.may_send.set()
    await servers.stop()
    assert servers.opened == 2


@pytest.mark.parametrize("names", [["a"], ["a", "b"]])
async def test_a_call_leaves_a_server_that_takes_no_audio(names):
    servers = Servers()
    # It is left neither because it is silent, nor because it acknowledges nothing.
    patient = Deadlines(suspect_s=60, acknowledge_s=60, send_s=0.1)
    line = Conversation(servers, names=names, deadlines=patient, bounds=Bounds(audio_ms=40))
    async with line:
        await line.speak(0, 1)
        await line.until(lambda: line.got(protocol.Transcript))
        stalled = servers.streams[0]
        stalled.may_send.clear()
        await line.speak(*[2] * 10, 0)
        await line.answered(1)
        await line.call.hang_up()
        stalled.may_send.set()
    await servers.stop()
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
    servers = Servers(CutStream(replies=20), *[ModelUnavailableError("gone")] * 4)
    line = Conversation(servers, bounds=Bounds(messages=4))
    async with line:
        await line.speak(0, 1, 0)
        await line.until(lambda: line.got(Reconnecting))
        for played_ms in range(20):
            line.call.report_playback("r1", played_ms)
        line.call.send_text("and this")
        await line.answered(2)
        await line.call.hang_up()
    await servers.stop()


async def test_a_call_leaves_a_server_that_does_not_know_its_session():
    servers = Servers()
    line = Conversation(servers)
    async with line:
        await line.speak(0, 1, 0)
        await line.answered(1)
        unknown = protocol.ErrorEvent(code="session_not_found", message="no session", retryable=False)
        servers.streams[0].replies.put_nowait(ServerReply("2", protocol.encode(unknown), final=True))
        await line.until(lambda: line.got(Reconnected))
        await line.speak(0, 2, 0)
        await line.answered(2)
        await line.call.hang_up()
    await servers.stop()
    assert not line.got(protocol.ErrorEvent)
    assert [message.content for message in servers.sessions[-1].messages if message.role == "user"] == [
        "1",
        "2",
    ]


async def test_a_call_leaves_a_server_that_refuses_a_request():
    servers = Servers()
    line = Conversation(servers)
    async with line:
        await line.speak(0, 0)
        stream = servers.streams[0]
        acknowledge = stream.acknowledge
        stream.acknowledge = lambda one: acknowledge(one, "Server is stopping" if one.message else "")
        on_frame = servers.sessions[0].on_frame
        servers.sessions[0].on_frame = lambda one: None if one.message else on_frame(one)
        line.call.send_text("hello")
        await line.answered(1)
        await line.call.hang_up()
    await servers.stop()
    assert [event.reason for event in line.got(Reconnected)] == ["lost"]
    assert [message.content for message in servers.sessions[-1].messages if message.role == "user"] == [
        "hello"
    ]
