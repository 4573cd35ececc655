"""Which stretches are read in one run, and what becomes of one that fails."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from asr_fakes import LoudnessModels
from hypothesis import given, settings
from hypothesis import strategies as st
from segment_fakes import MS, LoudReader

from parley.asr.messages import TranscribeRequest
from parley.asr.reader import ReadOptions, RunLimits, Stretch
from parley.asr.utterances.recordings import SegmentRecording, SegmentRecordingLimits, SegmentRounds
from parley.asr.utterances.worker import Source, ThreadedReader
from parley.errors import (
    DeadlineExceededError,
    InferenceError,
    ModelUnavailableError,
    OverloadedError,
    ParleyError,
)

TIMEOUT_S = 10
MANY = RunLimits(4, 4_000 * MS)


@pytest.mark.parametrize(
    ("lengths", "together"),
    [
        ([10], [0]),
        ([10, 10, 10, 10], [0, 1, 2]),
        ([10, 21, 12, 5, 8], [0, 2, 4]),
        ([10, 20, 5, 15], [0, 1, 3]),
        ([40, 40], [0]),
        ([25, 25, 25], [0, 1]),
        ([90], [0]),
    ],
)
def test_similar_stretches_are_read_together_as_far_as_there_is_room(lengths, together):
    assert RunLimits(3, 60).together(lengths) == together
    assert RunLimits().together(lengths) == [0]


@settings(deadline=None)
@given(st.lists(st.integers(1, 100), min_size=1, max_size=12), st.integers(1, 6), st.integers(0, 400))
def test_no_run_is_larger_than_allowed_and_the_first_is_always_read(lengths, stretches, samples):
    places = RunLimits(stretches, samples).together(lengths)
    assert places[0] == 0
    assert places == sorted(set(places))
    chosen = [lengths[place] for place in places]
    assert len(chosen) == 1 or len(chosen) * max(chosen) <= samples
    assert len(chosen) <= stretches
    assert max(chosen) <= 2 * min(chosen)


class SteppedReader(LoudReader):
    """Reads when the test permits it."""

    def __init__(self, limits):
        super().__init__(limits)
        self.began = threading.Semaphore(0)
        self.permits = threading.Semaphore(0)

    def read_together(self, stretches, stop):
        self.began.release()
        assert self.permits.acquire(timeout=TIMEOUT_S)
        return super().read_together(stretches, stop)


@pytest.fixture
def reader():
    return SteppedReader(MANY)


@pytest.fixture
def text_reader(reader):
    text_reader = ThreadedReader(reader, room=10)
    yield text_reader
    reader.permits.release(100)
    text_reader.close(TIMEOUT_S)


def asked(text_reader, ms, *, final=True):
    stretch = Stretch(np.full(ms * MS, 9_000, np.int16), ReadOptions())
    return text_reader.ask(stretch, final=final, of=Source(object(), 1))


def begin(text_reader, reader):
    """Keep the thread busy, so that what is asked for next waits."""
    first = asked(text_reader, 100)
    assert reader.began.acquire(timeout=TIMEOUT_S)
    return first


def result(request):
    try:
        return request.future.result(TIMEOUT_S).text
    except ParleyError as error:
        return error


def test_waiting_utterances_share_a_run_finals_first(text_reader, reader):
    first = begin(text_reader, reader)
    waiting = [asked(text_reader, ms, final=ms != 700) for ms in (500, 700, 600, 2_000, 500)]
    reader.permits.release(10)
    assert [result(each) for each in (first, *waiting)] == ["w10", "w50", "w70", "w60", "w200", "w50"]
    assert reader.runs == [[100], [500, 600, 500], [2_000], [700]]


def test_failed_utterance_does_not_fail_its_batch(text_reader, reader):
    begin(text_reader, reader)
    reader.failing = {600}
    waiting = [asked(text_reader, ms) for ms in (500, 600, 550)]
    reader.permits.release(10)
    texts = [result(each) for each in waiting]
    assert texts[::2] == ["w50", "w55"]
    assert isinstance(texts[1], InferenceError)
    text_reader.check()


def test_recordings_are_read_together():
    reader = LoudReader(RunLimits(4, 60_000 * MS))
    silence = np.zeros(960 * MS, np.int16)
    recordings = [
        SegmentRecording(
            np.concatenate([np.full(ms * MS, 9_000, np.int16), silence]),
            TranscribeRequest(),
            reader,
            SegmentRecordingLimits(),
        )
        for ms in (960, 640, 5_000)
    ]
    # With the silence that is put before a recording, and that which ends the speech.
    reader.failing = {96 + 640 + 320}
    rounds = SegmentRounds(reader, LoudnessModels())
    for _ in range(3):
        rounds.run([recording for recording in recordings if not (recording.done or recording.error)])
    # The run of the two similar ones failed, and each was then read by itself.
    assert [len(run) for run in reader.runs] == [2, 1, 1, 1]
    assert [recording.error is None for recording in recordings] == [True, False, True]
    assert recordings[0].reply().text == "w96"
    assert recordings[2].reply().text == "w500"


@pytest.mark.parametrize("failure", [DeadlineExceededError, ModelUnavailableError, OverloadedError])
def test_a_run_of_an_absent_model_is_not_repeated_for_each_stretch(failure):
    class Absent(LoudReader):
        def read_together(self, stretches, stop):
            self.runs.append(len(stretches))
            raise failure("no answer")

    reader = Absent(MANY)
    stretches = [Stretch(np.full(500 * MS, 9_000, np.int16), ReadOptions()) for _ in range(3)]
    assert [type(result) for result in reader.read_all(stretches)] == 3 * [failure]
    assert reader.runs == [3]


def test_a_run_stops_when_nothing_of_it_is_needed(text_reader, reader):
    begin(text_reader, reader)
    waiting = [asked(text_reader, ms, final=False) for ms in (500, 600)]
    reader.permits.release()
    assert reader.began.acquire(timeout=TIMEOUT_S)
    run = waiting[0].run
    assert run is waiting[1].run
    waiting[0].drop()
    assert not run.stop.requested
    waiting[1].drop()
    assert run.stop.requested


def test_partial_texts_that_are_read_together_give_way_to_a_final_one(text_reader, reader):
    begin(text_reader, reader)
    waiting = [asked(text_reader, ms, final=False) for ms in (500, 600)]
    reader.permits.release()
    assert reader.began.acquire(timeout=TIMEOUT_S)
    final = asked(text_reader, 700)
    assert waiting[0].run.stop.requested
    reader.permits.release(10)
    assert result(final) == "w70"


def test_each_run_after_one_that_failed_has_the_whole_time(reader):
    now = [0.0]
    text_reader = ThreadedReader(reader, room=10, stall_s=20.0, clock=lambda: now[0])
    begin(text_reader, reader)
    reader.failing = {600}
    waiting = [asked(text_reader, ms) for ms in (500, 600)]
    reader.permits.release()
    assert reader.began.acquire(timeout=TIMEOUT_S)
    now[0] = 15.0
    reader.permits.release()
    assert reader.began.acquire(timeout=TIMEOUT_S)
    now[0] = 30.0
    text_reader.check()
    now[0] = 36.0
    with pytest.raises(ModelUnavailableError, match="over 20 s"):
        text_reader.check()
    reader.permits.release(10)
    assert result(waiting[0]) == "w50"
    text_reader.close(TIMEOUT_S)
