"""What the server is told of how much was heard."""

from __future__ import annotations

import numpy as np
import pytest
from fake_agent import FakeAgent

from parley.errors import OverloadedError
from parley_client import NO_RETRY, AgentAudio, connect
from parley_client.audio.device import Speaker
from parley_client.audio.playout import PlayoutClock
from parley_client.playback import PlaybackMarks

RATE = 1000


def piece(count, response="r"):
    return AgentAudio(1, response, 0, RATE, np.ones(count, np.int16), "")


class Player:
    """Either kind of loudspeaker, by the same few words."""

    def __init__(self, kind):
        self.clock = PlayoutClock() if kind == "clock" else None
        self.speaker = Speaker(RATE) if kind == "speaker" else None
        self.now = 0.0

    def push(self, audio):
        self.clock.push(audio, self.now) if self.clock else self.speaker.push(audio)

    def say(self, what, response):
        if self.clock:
            getattr(self.clock, what)(response, self.now)
        else:
            getattr(self.speaker, what)(response)

    def play(self, ms):
        self.now += ms / 1000
        if self.clock:
            self.clock.advance(self.now)
        else:
            self.speaker.take(ms)

    @property
    def playing(self):
        return self.clock.playing(self.now) if self.clock else self.speaker.playing()

    @property
    def played_ms(self):
        return self.clock.played_ms if self.clock else self.speaker.played_ms


@pytest.fixture(params=["clock", "speaker"])
def player(request):
    return Player(request.param)


class Listener:
    """A call that only takes marks, of which the first ``refused`` find no room."""

    def __init__(self, refused=0):
        self.told, self.refused = [], refused

    def report_playback(self, response_id, played_ms):
        if self.refused:
            self.refused -= 1
            raise OverloadedError("full")
        self.told.append((response_id, round(played_ms)))


def marks_of(player):
    listener = Listener()
    marks = PlaybackMarks(listener, player.played_ms)

    def update():
        marks.update(player.playing, player.now)
        told, listener.told = listener.told, []
        return told

    return update


def test_a_mark_comes_now_and_then_and_at_the_end(player):
    update = marks_of(player)
    assert update() == []
    player.push(piece(500))
    told = []
    for _ in range(60):
        player.play(10)
        told.append(update())
    when = {10 * (index + 1): marks for index, marks in enumerate(told) if marks}
    assert when == {
        10: [("r", 10)],
        210: [("r", 210)],
        410: [("r", 410)],
        500: [("r", 500)],
    }


def test_a_pause_is_marked_at_once_and_the_mark_stands_still(player):
    update = marks_of(player)
    player.push(piece(500))
    player.play(10)
    update()
    player.play(50)
    assert update() == []
    player.say("pause", "r")
    assert update() == [("r", 60)]
    for _ in range(10):
        player.play(100)
        assert update() == []
    player.say("resume", "r")
    player.play(20)
    assert update() == [("r", 80)]


def test_each_response_gets_its_last_mark(player):
    update = marks_of(player)
    player.push(piece(100))
    player.push(piece(100, "next"))
    player.play(50)
    update()
    player.play(100)
    assert update() == [("r", 100)]
    assert update() == []
    player.play(100)
    assert update() == [("next", 100)]


def test_a_last_mark_that_finds_no_room_is_sent_later():
    speaker, listener = Speaker(RATE), Listener(refused=3)
    marks = PlaybackMarks(listener, speaker.played_ms)
    speaker.push(piece(9))
    speaker.take(1)
    marks.update(speaker.playing(), 1.0)
    marks.update(speaker.playing(), 1.02)
    speaker.take(9)
    for _ in range(3):
        marks.update(speaker.playing(), 1.04)
    assert listener.told == [("r", 9)]


async def test_marks_of_a_call_that_has_ended_are_dropped():
    speaker = Speaker(RATE)
    async with connect(transport=FakeAgent(), retry=NO_RETRY) as call:
        marks = PlaybackMarks(call, speaker.played_ms)
        speaker.push(piece(9))
        await call.hang_up()
        marks.update(speaker.playing(), 1.0)
        speaker.take(9)
        marks.update(speaker.playing(), 1.02)
