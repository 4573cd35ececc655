"""Requests that share one network."""

from __future__ import annotations

import logging
import sys
import threading
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from clause_fakes import RATE, WORD, FakeNetwork, PieceNetwork, Sink

from parley.errors import (
    InferenceError,
    InvalidMessageError,
    OverloadedError,
    ParleyError,
    ShuttingDownError,
    UnsupportedLanguageError,
    UnsupportedSampleRateError,
    UnsupportedVoiceError,
)
from parley.tts.clauses.synthesizer import ClauseSynthesizer
from parley.tts.messages import SpeakRequest
from parley.tts.requests import MAX_TEXT

TEXT = "One two three four, five six seven. Eight nine ten, eleven twelve thirteen fourteen fifteen sixteen."


@pytest.fixture
def rig():
    rig = Rig()
    yield rig
    rig.synthesizer.close()
    assert not rig.synthesizer._thread.is_alive()


@pytest.fixture
def streaming():
    rig = Rig(PieceNetwork())
    yield rig
    rig.synthesizer.close()


class Rig:
    def __init__(self, network=None, max_requests=3):
        self.network = network or FakeNetwork()
        self.synthesizer = ClauseSynthesizer(self.network, name="fake", max_requests=max_requests)

    def say(self, text=TEXT, request_id="a", sink=None, **fields):
        sink = sink or Sink()
        self.synthesizer.submit(SpeakRequest(request_id=request_id, text=text, **fields), sink)
        return sink


@pytest.mark.parametrize("rate", [None, 8_000, 24_000, 48_000])
def test_all_words_come_with_their_places(rig, rate):
    sink = rig.say(sample_rate=rate).wait()
    hertz = rate or RATE
    assert len(rig.network.made) > 1
    assert {chunk.sample_rate for chunk in sink.chunks} == {hertz}
    assert [TEXT[word.start_char : word.end_char] for word in sink.words] == TEXT.split()
    loud = np.abs(sink.samples.astype(float)) > 3000
    edges = [np.flatnonzero(loud[word.at_sample : word.at_sample + hertz // 10]) for word in sink.words]
    assert max(edge[0] for edge in edges) <= 0.011 * hertz  # of its tone
    for chunk, audio in zip(sink.chunks, sink.audio, strict=True):
        assert len(audio) <= hertz
        assert chunk.end_char > chunk.start_char
        for word in chunk.words:
            assert chunk.offset <= word.at_sample <= chunk.offset + len(audio)
    assert (sink.begun, sink.ends) == (1, 1)


def test_clauses_are_joined_without_a_step_and_without_long_silence(rig):
    samples = rig.say().wait().samples.astype(float)
    assert np.abs(np.diff(samples)).max() <= 0.3 * 32768 * 0.11
    quiet = np.convolve(np.abs(samples) < 10, np.ones(int(0.35 * RATE)), "valid")
    assert quiet.max() < 0.35 * RATE
    assert len(samples) < (16 * WORD) + len(rig.network.made) * 0.36 * RATE


@pytest.mark.parametrize("rate", [None, 8_000, 48_000])
def test_a_clause_that_is_made_in_pieces_is_sent_in_pieces(streaming, rate):
    text = "One two three. Four five."
    sink = streaming.say(text, sample_rate=rate).wait()
    hertz = rate or RATE
    assert streaming.network.made == ["One two three", "Four five"]
    assert len(sink.chunks) >= 5
    assert [text[word.start_char : word.end_char] for word in sink.words] == text.split()
    pause = len(sink.samples) / hertz - 0.5  # both sentences'
    begins = [word.at_sample / hertz for word in sink.words]
    np.testing.assert_allclose(begins, [0, 0.1, 0.2, 0.3 + pause / 2, 0.4 + pause / 2], atol=0.001)
    spans = [text[chunk.start_char : chunk.end_char] for chunk in sink.chunks]
    if rate is None:
        assert spans == ["One", "two", "three.", "Four", "five."]
    for chunk, audio in zip(sink.chunks, sink.audio, strict=True):
        for word in chunk.words:
            assert chunk.offset <= word.at_sample <= chunk.offset + len(audio)


def test_a_long_text_is_read_while_it_is_spoken(streaming):
    text = "Seven words are in each of these. " * 30
    sink = streaming.say(text, sink=Sink(takes=1)).wait()
    assert len(sink.chunks) == 1
    assert len(streaming.network.read) == 1
    whole = streaming.say(text, request_id="b").wait()
    assert "".join(streaming.network.read[1:]) == text
    assert [text[word.start_char : word.end_char] for word in whole.words] == text.split()


def test_each_voice_has_its_level(rig):
    soft, loud = (
        np.abs(rig.say(voice=voice, request_id=voice).wait().samples).max() for voice in ("ann", "ben")
    )
    assert loud / soft == pytest.approx(2, rel=0.01)


@pytest.mark.parametrize("text", ["", " ... ", "—", "\u4f60\u597d"])
def test_what_has_no_words_has_no_audio(rig, text):
    sink = rig.say(text).wait()
    assert (sink.chunks, rig.network.made) == ([], [])


def test_of_two_requests_the_one_goes_on_whose_audio_runs_out_first(rig):
    rig.network.gate.clear()
    long = rig.say(TEXT, "long")
    rig.network.begun.acquire()
    short = rig.say("Hello there you all.", "short")
    rig.network.gate.set()
    long.wait(), short.wait()
    assert rig.network.made[1] == "Hello there you all"


def test_synthesizer_calls_are_spoken_before_the_background(rig):
    rig.network.gate.clear()
    bulk = rig.say("Bulk one two, bulk three four five. " * 4, "bulk", background=True)
    rig.network.begun.acquire()
    more = rig.say("More bulk.", "more", background=True)
    call = rig.say("Call one two three, call four five six. Call seven eight.", "call")
    rig.network.gate.set()
    for sink in (bulk, more, call):
        sink.wait()
    of_call = [index for index, made in enumerate(rig.network.made) if "all" in made]
    assert of_call == list(range(1, 1 + len(of_call)))


def test_synthesizer_background_leaves_places_for_calls():
    rig = Rig(max_requests=8)
    rig.network.gate.clear()
    bulk = [rig.say(request_id=f"bulk{number}", background=True) for number in range(6)]
    with pytest.raises(OverloadedError):
        rig.say(request_id="more", background=True).wait()
    calls = [rig.say(request_id=f"call{number}") for number in range(2)]
    with pytest.raises(OverloadedError):
        rig.say(request_id="call2").wait()
    rig.network.gate.set()
    assert all(sink.wait().words for sink in (*bulk, *calls))
    rig.synthesizer.close()


@pytest.mark.parametrize(
    "text",
    [
        "555-123-4567 " * 100,
        "1," * 500,
        "a 1 " * 300,
        "1234567890" * 40,
        "\u00bd " * 200,
        "It is $5 or 7:30. " * 60,
        "+ [ " * 200,
    ],
)
def test_utterance_figures_pronounced_at_once_are_few(rig, text):
    rig.say(f"Go on, {text} end.").wait()
    assert "".join(rig.network.read) == f"Go on, {text} end."
    signs = [
        [char for char in part if not char.isalpha() and char not in " .,:"] for part in rig.network.read
    ]
    assert max(map(len, signs)) <= 32
    assert max(map(len, rig.network.read)) <= 250
    assert len(rig.network.read) <= len(text) // 25 + 2
    if " " in text:  # else there is no place where no number is cut
        assert all(before[-1].isspace() or part[0].isspace() for before, part in pairwise(rig.network.read))


def test_utterance_ordinary_text_is_pronounced_whole(rig):
    text = "On January 5, 2024 at 7:30 pm we paid $1,250.99 for 20 of them; call 555-123-4567."
    rig.say(text).wait()
    assert rig.network.read == [text]


def test_a_request_that_is_being_made_is_stopped(rig):
    rig.network.gate.clear()
    sink = rig.say()
    rig.network.begun.acquire()
    rig.synthesizer.abort("a")
    assert sink.wait().chunks == []
    rig.network.gate.set()
    assert rig.say(request_id="b").wait().words


def test_a_request_that_waits_is_stopped_without_any_work(rig):
    rig.network.gate.clear()
    first = rig.say()
    rig.network.begun.acquire()
    waiting = rig.say(request_id="b")
    rig.synthesizer.abort("b")
    assert waiting.wait().chunks == []
    rig.network.gate.set()
    first.wait()
    assert "".join(rig.network.made).count("One") == 1


def test_an_abort_may_overtake_its_request(rig):
    rig.synthesizer.abort("a")
    assert rig.say().wait().chunks == []
    assert rig.network.made == []


def test_cancelled_request_makes_no_audio(rig):
    gone = Sink()
    gone.wanted = False
    assert rig.say(sink=gone).wait().chunks == []
    leaving = rig.say(request_id="b", sink=Sink(takes=1)).wait()
    assert len(leaving.chunks) == 1
    assert len(rig.network.made) <= 2


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (InferenceError("boom"), InferenceError),
        (RuntimeError("unexpected"), ParleyError),
        (np.full(9_999, np.nan, np.float32), InferenceError),
        (np.zeros(9_999, np.float32), InferenceError),
    ],
)
def test_a_failure_ends_its_request_and_no_other(rig, failure, error):
    rig.network.failures.append(failure)
    with pytest.raises(error):
        rig.say().wait()
    assert rig.say(request_id="b").wait().words


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"request_id": ""}, InvalidMessageError),
        ({"text": "a" * (MAX_TEXT + 1)}, InvalidMessageError),
        ({"final": False}, InvalidMessageError),
        ({"voice": "missing"}, UnsupportedVoiceError),
        ({"language": "de"}, UnsupportedLanguageError),
        ({"sample_rate": 7_999}, UnsupportedSampleRateError),
        ({"sample_rate": 48_001}, UnsupportedSampleRateError),
        ({"seed": -1}, InvalidMessageError),
        ({"seed": 2**31}, InvalidMessageError),
    ],
)
def test_what_cannot_be_spoken_is_refused(rig, fields, error):
    with pytest.raises(error):
        rig.say(**fields).wait()
    assert rig.network.made == []


def test_places_are_bounded_and_given_back(rig):
    rig.network.gate.clear()
    sinks = [rig.say(request_id=name) for name in "abc"]
    with pytest.raises(OverloadedError):
        rig.say(request_id="d").wait()
    with pytest.raises(OverloadedError):
        rig.say(request_id="e").wait()
    rig.network.gate.set()
    for sink in sinks:
        sink.wait()
    assert rig.say(request_id="d").wait().words


def test_an_id_that_is_in_use_is_refused(rig):
    rig.network.gate.clear()
    first = rig.say()
    with pytest.raises(InvalidMessageError, match="in use"):
        rig.say().wait()
    rig.network.gate.set()
    first.wait()


def test_closing_fails_what_is_open_and_refuses_what_comes():
    rig = Rig()
    rig.network.gate.clear()
    sinks = [rig.say(), rig.say(request_id="b")]
    rig.network.begun.acquire()
    rig.synthesizer.close()
    for sink in (*sinks, rig.say(request_id="c")):
        with pytest.raises(ShuttingDownError):
            sink.wait()
    assert not any(thread.name == "fake" for thread in threading.enumerate())


def test_a_sink_that_fails_ends_its_own_request_alone(rig, caplog):
    class Broken(Sink):
        def finish(self):
            super().finish()
            raise RuntimeError("the request is gone")

    with caplog.at_level(logging.ERROR):
        rig.say(sink=Broken()).wait()
        assert rig.say(request_id="b").wait().words
    assert "could not be ended" in caplog.text
