"""A call that outlives its server, against agents that go on with sessions."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest
from fake_agent import FakeAgent, FakeStream, serve
from moving_call import LIMITS, Conversation, moving_call
from resuming_agent import CutStream, Servers, Session, frame

from parley import protocol
from parley.errors import ModelUnavailableError
from parley_client import (
    NO_RETRY,
    AgentAudio,
    Bounds,
    ConnectError,
    Deadlines,
    Reconnected,
    Reconnecting,
    call_session,
    connect,
)
from parley_client.transport import ServerReply


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
    moved = line.got(Reconnecting, Reconnected)
    assert [type(event) for event in moved] == [Reconnecting, Reconnected] * moves
    assert {event.reason for event in moved} <= {"lost"}
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


@pytest.mark.parametrize("reason", ["silence", "agent_ended", "transferred"])
async def test_a_server_that_ends_the_call_for_the_users_sake_ends_it(reason):
    stream = CutStream(replies=3)
    stream.end = closes(reason)
    servers = Servers(stream)
    line = Conversation(servers)
    async with line:
        await line.until(lambda: line.call.is_over)
    assert line.call.closed == protocol.Closed(reason=reason)
    assert len(servers.streams) == 1
    await servers.stop()


async def test_the_session_that_goes_on_has_the_newest_settings_and_the_progress():
    async with moving_call(CutStream(replies=22), system_prompt="be kind", greeting="Hello.") as (
        line,
        servers,
    ):
        line.call.update(protocol.Update(voice="b"))
        await line.until(lambda: line.got(protocol.Updated))
        await line.speak(0, 0, 1, 0)
        await line.answered(1)
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
    async with moving_call() as (line, servers):
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
    async with moving_call() as (line, servers):
        await line.speak(0, 1, 2)
        await line.until(lambda: line.got(protocol.Transcript))
        await go_away(line, servers.sessions[0], time_left_ms=10)
        await line.speak(3, 0)
        await line.answered(1)
    session = servers.sessions[1]
    assert [m.content for m in session.messages] == ["1 2 3", "You said 1 2 3."]
    assert len(line.got(protocol.SpeechStarted)) == 1


@pytest.mark.parametrize("second_ms", [0, 10])
async def test_the_newest_deadline_counts(second_ms):
    async with moving_call() as (line, servers):
        await line.speak(0, 1, 2)
        await line.until(lambda: line.got(protocol.Transcript))
        servers.sessions[0].stream.say(protocol.GoAway(time_left_ms=60_000))
        await go_away(line, servers.sessions[0], time_left_ms=second_ms)
        await go_away(line, servers.sessions[1], time_left_ms=second_ms)  # the next server drains, too
        await line.speak(3, 0)
        await line.answered(1)
    assert [m.content for m in servers.sessions[-1].messages] == ["1 2 3", "You said 1 2 3."]


async def test_a_call_stays_where_no_other_server_takes_it(monkeypatch):
    async def refuses(stream):
        await stream.frames.get()
        stream.say(protocol.ErrorEvent(code="too_many_sessions", message="full", retryable=True))
        stream.hang_up("failed")
        while await stream.frames.get() is not None:
            pass
        stream.end()

    async with moving_call(FakeStream(), ConnectError("no")) as (line, servers):
        await line.speak(0, 0)
        first = servers.sessions[0]
        monkeypatch.setattr(servers, "_serve", refuses)
        first.stream.say(protocol.GoAway(time_left_ms=60_000))
        first.checkpoint()
        async with asyncio.timeout(10):
            while len(servers.call_ids) < 4:  # noqa: ASYNC110 - no event reports the change
                await asyncio.sleep(0.01)
        await line.speak(0, 1, 0)
        await line.answered(1)
    assert not line.got(Reconnecting, Reconnected, protocol.ErrorEvent)
    assert first.audio == line.audio
    assert line.call.closed == protocol.Closed(reason="ended")


async def test_a_refusal_that_comes_when_its_time_is_over_is_not_the_applications(monkeypatch):
    async def stalls(stream):
        await stream.frames.get()
        time.sleep(0.1)  # noqa: ASYNC251 - the process stands still: the refusal and the deadline come together
        await asyncio.sleep(0)
        stream.say(protocol.ErrorEvent(code="too_many_sessions", message="full", retryable=True))
        while await stream.frames.get() is not None:
            pass
        stream.end()

    monkeypatch.setattr(call_session, "_PLANNED_OPEN_S", 0.05)
    async with moving_call() as (line, servers):
        await line.speak(0, 0)
        first = servers.sessions[0]
        monkeypatch.setattr(servers, "_serve", stalls)
        first.stream.say(protocol.GoAway(time_left_ms=60_000))
        first.checkpoint()
        async with asyncio.timeout(10):
            while len(servers.call_ids) < 3:  # noqa: ASYNC110 - no event reports the change
                await asyncio.sleep(0.01)
        await line.speak(0, 1, 0)
        await line.answered(1)
    assert not line.got(Reconnecting, Reconnected, protocol.ErrorEvent)


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
    async with moving_call(SilentStream(), deadlines=QUICK) as (line, servers):
        await line.speak(0, 1)
        await line.until(lambda: line.got(protocol.Transcript))
        servers.streams[0].connected.clear()
        await line.speak(*[2] * 15, 0)
        await line.answered(1)
    assert [event.reason for event in line.got(Reconnecting, Reconnected)] == ["silent", "silent"]
    session = servers.sessions[1]
    assert line.audio.startswith(bytes(session.audio), session.begin)
    assert len(line.got(protocol.SpeechStarted)) == len(line.got(protocol.ResponseDone)) == 1


async def test_a_slow_server_is_not_left_where_there_is_no_other():
    async with moving_call(SilentStream(), names="a", deadlines=QUICK) as (line, servers):
        await line.speak(0, 1)
        await line.until(lambda: line.got(protocol.Transcript))
        servers.streams[0].connected.clear()
        await line.speak(0)
        await asyncio.sleep(0.3)
        servers.streams[0].connected.set()
        await line.answered(1)
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
        await call.send_audio(frame(0))
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
