"""What the caller hears, piece by piece."""

import base64

import numpy as np
import pytest

from parley_client.events import AgentAudio
from parley_gateway.apis.twilio.playback import MAX_PIECES, PIECE_MS, Playback
from parley_gateway.audio.g711 import decode_ulaw


class Line:
    def __init__(self):
        self.sent = []
        self.reported = []
        self.playback = Playback("MZ1", self.sent.append, lambda *heard: self.reported.append(heard))

    def say(self, milliseconds, response="r1", offset_ms=0, rate=8_000):
        samples = np.zeros(rate * milliseconds // 1000, np.int16)
        self.playback.play(AgentAudio(1, response, offset_ms, rate, samples, ""))

    def marks(self):
        return [message["mark"]["name"] for message in self.sent if message["event"] == "mark"]

    def audio_ms(self):
        payloads = [message["media"]["payload"] for message in self.sent if message["event"] == "media"]
        return sum(len(base64.b64decode(payload)) for payload in payloads) / 8


@pytest.fixture
def line():
    return Line()


def test_every_piece_is_followed_by_a_mark(line):
    line.say(250)
    assert [message["event"] for message in line.sent] == ["media", "mark"] * 3
    assert line.audio_ms() == 250
    assert not line.playback.silent.is_set()


def test_a_mark_counts_for_everything_before_it(line):
    line.say(300)
    line.playback.heard(line.marks()[1])
    assert line.reported == [("r1", 200)]
    line.playback.heard(line.marks()[0])  # came too late to mean anything
    assert line.reported == [("r1", 200)]
    line.playback.heard(line.marks()[2])
    assert line.playback.silent.is_set()


def test_an_unknown_mark_means_nothing(line):
    line.say(100)
    line.playback.heard("nonsense")
    assert line.reported == []


def test_another_answer_stays_when_one_is_dropped(line):
    line.say(100, "r1")
    line.say(100, "r2")
    line.playback.drop("r1")
    line.playback.heard(line.marks()[-1])
    assert line.reported == [("r2", 100)]
    assert [message["event"] for message in line.sent][-3:] == ["clear", "media", "mark"]


def test_without_a_pause_there_is_nothing_to_go_on_with(line):
    line.say(100)
    before = len(line.sent)
    line.playback.resume()
    assert len(line.sent) == before


def test_a_peer_that_returns_no_marks_is_not_remembered_for_ever(line):
    for count in range(MAX_PIECES + 50):
        line.say(PIECE_MS, offset_ms=PIECE_MS * count)
    line.playback.heard(line.marks()[0])
    assert line.reported == []
    line.playback.heard(line.marks()[-1])
    assert line.reported == [("r1", PIECE_MS * (MAX_PIECES + 50))]


def test_speech_of_another_rate_is_brought_to_the_telephones(line):
    line.say(100, rate=22_050)
    assert line.audio_ms() == pytest.approx(100, abs=1)
    assert not decode_ulaw(base64.b64decode(line.sent[0]["media"]["payload"])).any()


def test_words_without_audio_make_no_message(line):
    line.say(0)
    assert line.sent == []
    assert line.playback.silent.is_set()
