"""The reports to the server of how much was heard."""

from __future__ import annotations

import asyncio
import sys
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from fake_agent import FakeAgent
from hypothesis import given
from hypothesis import strategies as st

from parley import protocol
from parley.errors import OverloadedError
from parley_client import NO_RETRY, AgentAudio, connect
from parley_client.audio.device import AudioDevice, PlaybackBuffer
from parley_client.audio.playout import PlayoutClock
from parley_client.cli.conversation import PlaybackMarks
from parley_client.errors import AudioDeviceError, ClientError


def piece(values, response="r"):
    return AgentAudio(1, response, 0, 1000, np.array(values, np.int16), "")


def test_pieces_are_played_in_order_and_silence_follows():
    speaker = PlaybackBuffer(1000)
    speaker.push(piece([1, 2, 3]))
    speaker.push(piece([4], "next"))
    assert (speaker.playing(), speaker.played_ms("r")) == ("r", 0)
    assert speaker.read_samples(2).tolist() == [1, 2]
    assert (speaker.playing(), speaker.played_ms("r")) == ("r", 2.0)
    assert speaker.read_samples(4).tolist() == [3, 4, 0, 0]
    assert (speaker.playing(), speaker.played_ms("r"), speaker.played_ms("next")) == (None, 3.0, 1.0)
    assert speaker.read_samples(2).tolist() == [0, 0]


def test_audio_without_room_is_dropped():
    speaker = PlaybackBuffer(1000, limit_s=0.003)
    speaker.push(piece([1, 2]))
    speaker.push(piece([3, 4]))
    speaker.push(piece([5]))
    assert speaker.read_samples(4).tolist() == [1, 2, 5, 0]


class FakeStream:
    opened: list[FakeStream] = []  # noqa: RUF012 - reset by each test

    def __init__(self, *, callback, fail=False, **settings) -> None:
        self.callback, self.settings, self.closed, self.fail = callback, settings, False, fail
        FakeStream.opened.append(self)

    def start(self):
        if self.fail:
            raise PortAudioError("Invalid sample rate")

    def close(self):
        self.closed = True


class PortAudioError(Exception):
    pass


@pytest.fixture
def portaudio(monkeypatch):
    FakeStream.opened = []
    fake = SimpleNamespace(
        RawInputStream=FakeStream, RawOutputStream=FakeStream, PortAudioError=PortAudioError
    )
    monkeypatch.setitem(sys.modules, "sounddevice", fake)
    return fake


async def test_the_microphones_blocks_reach_the_event_loop(portaudio):
    heard: asyncio.Queue[np.ndarray] = asyncio.Queue()
    speaker = PlaybackBuffer(24_000)
    with AudioDevice(speaker, 24_000, heard.put_nowait):
        microphone, loudspeaker = FakeStream.opened
        assert (microphone.settings["samplerate"], loudspeaker.settings["samplerate"]) == (16_000, 24_000)
        block = np.array([3, -4], np.int16).tobytes()
        await asyncio.to_thread(microphone.callback, block, 2, None, None)
        async with asyncio.timeout(5):
            assert (await heard.get()).tolist() == [3, -4]
        speaker.push(piece([5, 6]))
        data = bytearray(6)
        loudspeaker.callback(data, 3, None, None)
        assert np.frombuffer(data, np.int16).tolist() == [5, 6, 0]
    assert all(stream.closed for stream in FakeStream.opened)


async def test_a_device_that_cannot_be_used_is_named_and_released(portaudio):
    portaudio.RawOutputStream = lambda **settings: FakeStream(fail=True, **settings)
    with (
        pytest.raises(AudioDeviceError, match="Invalid sample rate"),
        AudioDevice(PlaybackBuffer(24_000), 24_000, lambda _: None),
    ):
        pass
    assert all(stream.closed for stream in FakeStream.opened)


RATE = 1000


def timed_piece(count, response="r"):
    return AgentAudio(1, response, 0, RATE, np.ones(count, np.int16), "")


class Player:
    """Either kind of loudspeaker, by the same few words."""

    def __init__(self, kind):
        self.parts = []
        """What was heard: silence may be missing."""
        self.spans = []
        """When the clock's parts were heard, in seconds."""
        self.clock = PlayoutClock(self._on_heard) if kind == "clock" else None
        self.speaker = PlaybackBuffer(RATE) if kind == "speaker" else None
        self.now = 0.0

    def _on_heard(self, part):
        self.parts.append(part.samples)
        self.spans.append((part.at_s, part.at_s + len(part.samples) / RATE))

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
            self.parts.append(self.speaker.read_samples(ms))

    @property
    def heard(self):
        """Samples without silence."""
        samples = np.concatenate([*self.parts, np.zeros(0, np.int16)])
        return samples[samples != 0].tolist()

    @property
    def playing(self):
        return self.clock.playing(self.now) if self.clock else self.speaker.playing()

    @property
    def played_ms(self):
        return self.clock.played_ms if self.clock else self.speaker.played_ms


@pytest.fixture(params=["clock", "speaker"])
def player(request):
    return Player(request.param)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["push", "pause", "resume", "interrupt", "pass"]),
        st.sampled_from("ab"),
        st.integers(0, 400),
    ),
    max_size=40,
)


@pytest.mark.parametrize("kind", ["clock", "speaker"])
@given(STEPS)
def test_player_plays_each_response_in_order_and_nothing_while_paused(kind, steps):
    """The samples of one response count up from 1, and those of the other one down from -1."""
    player, signs = Player(kind), {"a": 1, "b": -1}
    pushed, held, dropped = {"a": 0, "b": 0}, set(), {}
    for what, response, amount in steps:
        before = len(player.heard)
        player.play(amount)
        assert not (held and player.heard[before:])
        if what == "push":
            first = pushed[response] + 1
            samples = signs[response] * np.arange(first, first + amount, dtype=np.int16)
            player.push(AgentAudio(1, response, 0, RATE, samples, ""))
            pushed[response] += amount
        elif what != "pass":
            player.say(what, response)
            if what == "pause" and response not in dropped:
                held.add(response)
            elif what != "pause":
                held.discard(response)
            if what == "interrupt":
                dropped.setdefault(response, player.played_ms(response))
        assert not (held and player.playing)
    before = len(player.heard)
    player.play(100_000)
    assert not (held and player.heard[before:])
    for response, sign in signs.items():
        played = [sign * sample for sample in player.heard if sample * sign > 0]
        assert played == list(range(1, len(played) + 1))
        assert len(played) == pytest.approx(player.played_ms(response), abs=1)
        if response in dropped:
            assert len(played) == pytest.approx(dropped[response], abs=1)
        elif not held:
            assert len(played) == pushed[response]
    assert all(end <= begin + 1e-6 for (_, end), (begin, _) in pairwise(player.spans))


class Listener:
    """A call that only takes marks, of which the first ``refused`` find no room."""

    def __init__(self, refused=0):
        self.marks, self.refused = [], refused

    def report_playback(self, response_id, played_ms):
        if self.refused:
            self.refused -= 1
            raise OverloadedError("full")
        self.marks.append((response_id, round(played_ms)))


def marks_of(player):
    listener = Listener()
    marks = PlaybackMarks(listener, player.played_ms)

    def update():
        marks.update(player.playing, player.now)
        sent, listener.marks = listener.marks, []
        return sent

    return update


def test_a_mark_comes_now_and_then_and_at_the_end(player):
    update = marks_of(player)
    assert update() == []
    player.push(timed_piece(500))
    updates = []
    for _ in range(60):
        player.play(10)
        updates.append(update())
    when = {10 * (index + 1): marks for index, marks in enumerate(updates) if marks}
    assert when == {
        10: [("r", 10)],
        210: [("r", 210)],
        410: [("r", 410)],
        500: [("r", 500)],
    }


def test_a_pause_is_marked_at_once_and_the_mark_stands_still(player):
    update = marks_of(player)
    player.push(timed_piece(500))
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
    player.push(timed_piece(100))
    player.push(timed_piece(100, "next"))
    player.play(50)
    update()
    player.play(100)
    assert update() == [("r", 100)]
    assert update() == []
    player.play(100)
    assert update() == [("next", 100)]


def test_a_last_mark_that_finds_no_room_is_sent_later():
    speaker, listener = PlaybackBuffer(RATE), Listener(refused=3)
    marks = PlaybackMarks(listener, speaker.played_ms)
    speaker.push(timed_piece(9))
    speaker.read_samples(1)
    marks.update(speaker.playing(), 1.0)
    marks.update(speaker.playing(), 1.02)
    speaker.read_samples(9)
    for _ in range(3):
        marks.update(speaker.playing(), 1.04)
    assert listener.marks == [("r", 9)]


async def test_marks_of_a_call_that_has_ended_are_dropped():
    speaker, agent = PlaybackBuffer(RATE), FakeAgent()
    async with connect(transport=agent, retry=NO_RETRY) as call:
        marks = PlaybackMarks(call, speaker.played_ms)
        speaker.push(timed_piece(9))
        speaker.read_samples(3)
        marks.update(speaker.playing(), 1.0)
        await call.hang_up()
        with pytest.raises(ClientError):
            call.report_playback("r", 3)
        marks.update(speaker.playing(), 2.0)
        speaker.read_samples(9)
        marks.update(speaker.playing(), 2.02)
    seen = agent.streams[0].seen
    messages = [protocol.decode_message(frame.message) for frame in seen if frame.message and not frame.start]
    assert [one.played_ms for one in messages if isinstance(one, protocol.Playback)] == [3]
