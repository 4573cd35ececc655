"""Whole recordings, read piece by piece."""

from __future__ import annotations

from itertools import pairwise

import pytest
from asr_fakes import LoudnessModels, sound
from attention_fakes import MS, LengthNetwork, new_reader

from parley.asr.messages import TranscribeRequest
from parley.asr.utterances.recordings import SegmentRecording, SegmentRecordingLimits, SegmentRounds
from parley.asr.utterances.utterance import Window
from parley.protocol import VadOptions

VAD = VadOptions(silence_ms=320)


@pytest.fixture
def network():
    return LengthNetwork()


@pytest.fixture
def reader(network):
    return new_reader(network)


@pytest.fixture
def models():
    return LoudnessModels()


@pytest.fixture
def finish(reader, models):
    def run(*recordings):
        rounds = SegmentRounds(reader, models)
        left, order = list(recordings), []
        while left:
            rounds.run(left)
            order += [recordings.index(one) for one in left if one.done or one.error]
            left = [one for one in left if not (one.done or one.error)]
        return order

    return run


def new(reader, audio, *, vad=VAD, window=Window(3_000, 1_500), **request):  # noqa: B008 - frozen
    return SegmentRecording(audio, TranscribeRequest(**request), reader, SegmentRecordingLimits(vad, window))


def times(reply):
    return [(segment.start_ms, segment.end_ms) for segment in reply.segments]


def test_distant_speech_is_decoded_separately(reader, finish):
    recording = new(reader, sound((960, True), (2_000, False), (960, True), (960, False)))
    finish(recording)
    reply = recording.reply()
    assert len(reply.segments) == 2
    assert reply.text == " ".join(segment.text for segment in reply.segments)
    (begin, end), (again, last) = times(reply)
    assert begin == 0
    assert 960 <= end <= 2_000
    assert 2_500 <= again <= 2_960
    assert 3_920 <= last <= reply.duration_ms == 4_880
    assert reply.words == []
    assert reply.confidence > 0.9


def test_close_speech_is_decoded_together_within_the_window(reader, finish):
    close = sound((640, True), (640, False), (640, True), (640, False))
    recording = new(reader, close)
    finish(recording)
    assert len(recording.reply().segments) == 1
    recording = new(reader, close, window=Window(1_500, 700))
    finish(recording)
    assert len(recording.reply().segments) == 2


def test_long_speech_is_cut_and_nothing_is_lost(reader, finish, network):
    recording = new(reader, sound((20_000, True), (960, False)))
    finish(recording)
    segments = times(recording.reply())
    assert len(segments) >= 7
    assert all(end == start for (_, end), (start, _) in pairwise(segments))
    assert max(network.read) <= 3_000 * MS
    assert 20_000 <= sum(network.read) // MS - 96 <= 20_700


def test_reply_has_the_amount_of_speech(reader, finish):
    recording = new(reader, sound((960, True), (2_000, False), (640, True)))
    finish(recording)
    assert 1_600 <= recording.reply().speech_ms <= 2_960


def test_without_voice_activity_all_of_it_is_read(reader, finish, models):
    recording = new(reader, sound((960, True), (2_000, False)), vad=None)
    finish(recording)
    assert models.calls == []
    assert times(recording.reply()) == [(0, 2_960)]
    assert recording.reply().speech_ms is None
