"""Talking with a microphone and a loudspeaker that are not there."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from fake_agent import CONNECTED, FakeAgent

from parley import protocol
from parley.errors import OverloadedError
from parley_client import NO_RETRY, AgentAudio, Bounds, CallLostError, connect
from parley_client.audio.device import Speaker
from parley_client.cli import build_parser
from parley_client.commands import talk
from parley_client.terminal.view import make_console

ANSWER = np.full(4000, 9, np.int16)
BLOCK = np.full(512, 7, np.int16).tobytes()


class Microphone:
    """Delivers one block, as soon as it is opened."""

    def __init__(self, *, callback, **_) -> None:
        self.callback = callback

    def start(self):
        self.callback(BLOCK, 512, None, None)

    def close(self):
        pass


class Loudspeaker:
    """Plays a block of 1000 samples whenever it is told to."""

    last: Loudspeaker

    def __init__(self, *, callback, **_) -> None:
        self.callback, self.heard = callback, []
        Loudspeaker.last = self

    def start(self):
        pass

    def close(self):
        pass

    def play(self):
        data = bytearray(2000)
        self.callback(data, 1000, None, None)
        self.heard.extend(np.frombuffer(data, np.int16))

    async def play_until_heard(self):
        while not any(self.heard):
            self.play()
            await asyncio.sleep(0)


@pytest.fixture
def headset(monkeypatch):
    fake = SimpleNamespace(RawInputStream=Microphone, RawOutputStream=Loudspeaker, PortAudioError=OSError)
    monkeypatch.setitem(sys.modules, "sounddevice", fake)
    monkeypatch.setattr(talk, "_MARK_INTERVAL_S", 0.001)


def talk_with(behaviour, monkeypatch):
    agent = FakeAgent(behaviour)
    monkeypatch.setattr(
        talk, "open_call", lambda args, tools: connect(transport=agent, retry=NO_RETRY, tools=tools)
    )
    return talk.run(build_parser().parse_args(["talk"]), make_console())


async def test_what_is_said_is_sent_and_what_is_answered_is_heard(headset, monkeypatch, capsys):
    marks = []

    async def answers(stream):
        await stream.frames.get()
        stream.say(CONNECTED)
        assert (await stream.frames.get()).audio == BLOCK
        stream.say(protocol.Transcript(utterance=1, text="hello", is_final=True, confidence=1))
        event = protocol.Audio(turn=1, response_id="r", offset_ms=0, sample_rate=22_050, samples=4000)
        stream.say(event, ANSWER)
        stream.say(protocol.AgentState(state="speaking"))
        async with asyncio.timeout(5):
            await Loudspeaker.last.play_until_heard()
            marks.append(protocol.decode_message((await stream.frames.get()).message))
        stream.say(protocol.Interrupted(turn=1, response_id="r", played_ms=45, spoken_text="Hi"))
        stream.hang_up("hangup")
        stream.end()

    assert await talk_with(answers, monkeypatch) == 0
    # Whatever was still queued when the interruption came is never played.
    Loudspeaker.last.play()
    assert [sample for sample in Loudspeaker.last.heard if sample] == [9] * 1000
    assert marks == [protocol.Playback(response_id="r", played_ms=45)]
    out = capsys.readouterr().out
    assert "hello" in out
    assert "interrupted; heard of it: Hi" in out
    assert "call closed: hangup" in out


async def test_a_block_that_comes_while_the_call_is_hung_up_is_dropped():
    async with connect(transport=FakeAgent(), retry=NO_RETRY) as call:
        ending = asyncio.ensure_future(call.hang_up())
        await asyncio.sleep(0)  # hung up, not yet closed
        assert not call.is_over
        talk._offer(call, np.zeros(512, np.int16))
        assert await ending == protocol.Closed(reason="ended")
        talk._offer(call, np.zeros(512, np.int16))


async def test_a_mark_that_finds_no_room_is_followed_by_another(monkeypatch):
    monkeypatch.setattr(talk, "_MARK_INTERVAL_S", 0.001)
    agent = FakeAgent()
    speaker = Speaker(1000)
    speaker.push(AgentAudio(1, "r", 0, 1000, np.ones(9, np.int16), ""))
    async with connect(transport=agent, retry=NO_RETRY, bounds=Bounds(messages=1)) as call:
        stream = agent.streams[0]
        stream.may_send.clear()
        call.offer_audio(b"\0\0")  # holds up the sender
        call.mute()  # takes the only place
        full, told = asyncio.Event(), asyncio.Event()
        report = call.report_playback

        def note(*mark):
            try:
                report(*mark)
                told.set()
            except OverloadedError:
                full.set()
                raise

        monkeypatch.setattr(call, "report_playback", note)
        marks = asyncio.create_task(talk._report_playback(call, speaker))
        speaker.take(1)
        async with asyncio.timeout(5):
            await full.wait()
            stream.may_send.set()
            await told.wait()
        marks.cancel()
        await call.hang_up()
    assert protocol.decode_message(stream.seen[-2].message) == protocol.Playback(response_id="r", played_ms=1)


async def test_a_lost_call_ends_the_talk(headset, monkeypatch):
    async def breaks(stream):
        await stream.frames.get()
        stream.say(CONNECTED)
        stream.end()

    with pytest.raises(CallLostError):
        await talk_with(breaks, monkeypatch)


@pytest.mark.parametrize(("reason", "status"), [("ended", 0), ("hangup", 0), ("failed", 1), ("shutdown", 1)])
async def test_the_exit_status_tells_whether_the_call_ended_as_wanted(headset, monkeypatch, reason, status):
    async def closes(stream):
        await stream.frames.get()
        stream.say(CONNECTED)
        stream.hang_up(reason)
        stream.end()

    assert await talk_with(closes, monkeypatch) == status
