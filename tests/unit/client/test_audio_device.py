"""The loudspeaker's buffer, and microphone and loudspeaker on a PortAudio that is not there."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from parley_client import AgentAudio
from parley_client.audio.device import AudioDevice, Speaker
from parley_client.errors import AudioDeviceError


def piece(values, response="r"):
    return AgentAudio(1, response, 0, 1000, np.array(values, np.int16), "")


def test_pieces_are_played_in_order_and_silence_follows():
    speaker = Speaker(1000)
    speaker.push(piece([1, 2, 3]))
    speaker.push(piece([4], "next"))
    assert (speaker.playing(), speaker.played_ms("r")) == ("r", 0)
    assert speaker.take(2).tolist() == [1, 2]
    assert (speaker.playing(), speaker.played_ms("r")) == ("r", 2.0)
    assert speaker.take(4).tolist() == [3, 4, 0, 0]
    assert (speaker.playing(), speaker.played_ms("r"), speaker.played_ms("next")) == (None, 3.0, 1.0)
    assert speaker.take(2).tolist() == [0, 0]


def test_an_interrupted_response_is_neither_finished_nor_continued():
    speaker = Speaker(1000)
    speaker.push(piece([1, 2, 3]))
    speaker.push(piece([7], "next"))
    speaker.take(1)
    speaker.interrupt("r")
    speaker.push(piece([4]))
    assert speaker.take(3).tolist() == [7, 0, 0]


def test_a_paused_speaker_is_silent_and_goes_on_exactly_where_it_was():
    speaker = Speaker(1000)
    speaker.push(piece([1, 2, 3]))
    speaker.take(1)
    speaker.pause("r")
    speaker.pause("r")
    assert speaker.take(2).tolist() == [0, 0]
    speaker.push(piece([4]))
    speaker.push(piece([5], "next"))
    assert (speaker.take(2).tolist(), speaker.playing(), speaker.played_ms("r")) == ([0, 0], None, 1.0)
    speaker.resume("other")
    assert speaker.playing() is None
    speaker.resume("r")
    assert speaker.take(5).tolist() == [2, 3, 4, 5, 0]


def test_a_response_that_is_interrupted_while_paused_is_dropped_and_the_next_one_is_played():
    speaker = Speaker(1000)
    speaker.push(piece([1, 2, 3]))
    speaker.take(1)
    speaker.pause("r")
    speaker.interrupt("r")
    speaker.push(piece([4]))
    speaker.push(piece([5], "next"))
    speaker.pause("r")  # too late to hold anything up
    assert speaker.take(3).tolist() == [5, 0, 0]


def test_a_pause_with_nothing_to_play_holds_what_comes_then():
    speaker = Speaker(1000)
    speaker.pause("r")
    speaker.push(piece([1]))
    assert speaker.take(1).tolist() == [0]
    speaker.interrupt("other")
    assert speaker.take(1).tolist() == [0]
    speaker.resume("r")
    assert speaker.take(1).tolist() == [1]
    speaker.resume("r")  # not paused at all
    assert speaker.take(1).tolist() == [0]


def test_audio_without_room_is_dropped():
    speaker = Speaker(1000, limit_s=0.003)
    speaker.push(piece([1, 2]))
    speaker.push(piece([3, 4]))
    speaker.push(piece([5]))
    assert speaker.take(4).tolist() == [1, 2, 5, 0]


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
    speaker = Speaker(24_000)
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
        AudioDevice(Speaker(24_000), 24_000, lambda _: None),
    ):
        pass
    assert all(stream.closed for stream in FakeStream.opened)
