"""Requests to the transcription service, with recordings that finish when the test says so."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from test_parakeet_recordings import open_reader

from parley.asr.messages import TranscribeReply
from parley.asr.reader import NO_TEXT
from parley.asr.utterances.recordings import SegmentRecording, SegmentRecordingLimits
from parley.asr.utterances.transcription import TranscriptionLimits, TranscriptionService
from parley.errors import (
    InferenceError,
    InvalidAudioError,
    InvalidMessageError,
    OverloadedError,
    ParleyError,
    ShuttingDownError,
    UnsupportedLanguageError,
)
from parley.models.parakeet_transcribe import read_limits
from parley.runtime.parameters import Parameters

SECOND = np.zeros(16_000, np.int16)
TIMEOUT_S = 10


class Caller:
    def __init__(self, *, broken=False):
        self.answered = threading.Event()
        self.cancelled = False
        self.reply = self.error = None
        self._broken = broken

    def send(self, reply):
        self.reply = reply
        self.answered.set()
        if self._broken:
            raise RuntimeError("the connection is gone")

    def fail(self, error):
        self.error = error
        self.answered.set()

    def wait(self):
        assert self.answered.wait(TIMEOUT_S)
        return self


class SteppedRounds:
    """A round for each permit; it finishes the first recording, or does what the test says."""

    def __init__(self):
        self.permits = threading.Semaphore(0)
        self.began = threading.Semaphore(0)
        self.sizes = []
        self.act = self.finish_first

    def run(self, recordings):
        self.began.release()
        assert self.permits.acquire(timeout=TIMEOUT_S)
        self.sizes.append(len(recordings))
        self.act(recordings)

    @staticmethod
    def finish_first(recordings):
        for piece in recordings[0].unread():
            piece.text = NO_TEXT

    @staticmethod
    def nothing(recordings):
        """Nothing is finished."""


@pytest.fixture
def rounds():
    return SteppedRounds()


@pytest.fixture
def service(export, rounds):
    reader, limits = open_reader(None, export), SegmentRecordingLimits(None)
    service = TranscriptionService(
        lambda audio, request: SegmentRecording(audio, request, reader, limits),
        rounds,
        TranscriptionLimits(("en",), max_audio_ms=5_000, max_pending_ms=8_000),
    )
    yield service
    rounds.permits.release(100)
    service.close(TIMEOUT_S)


def submit(service, audio=SECOND, message=b"{}", **caller):
    who = Caller(**caller)
    service.submit(audio, message, who)
    return who


def test_each_is_answered_when_it_is_done(service, rounds):
    first = submit(service, audio=np.tile(SECOND, 2)[None])
    rounds.began.acquire(timeout=TIMEOUT_S)
    second = submit(service)
    rounds.permits.release()
    assert first.wait().reply.duration_ms == 2_000
    assert not second.answered.is_set()
    rounds.permits.release()
    assert second.wait().reply.duration_ms == 1_000


class Transcribed:
    """A recording that is done."""

    samples = 16_000
    error = None
    done = True

    def __init__(self, text, language):
        self._reply = TranscribeReply(text=text, language=language)

    def reply(self):
        return self._reply


@pytest.mark.parametrize(
    ("taken", "own", "found", "said"),
    [
        ("all", ["de"], "", "de"),
        ("all", ["de", "fr"], "", ""),
        ("en", ["en", "de"], "", ""),  # it writes what it hears
        ("de", [], "", "de"),
        ("de,fr", [], "", ""),
        ("all", [], "", "en"),
        ("all", ["de", "fr", "auto"], "de", "de"),
        ("all", ["auto"], "", ""),
    ],
)
def test_a_text_has_the_language_of_weights_of_one(rounds, taken, own, found, said):
    parameters = Parameters("parakeet_transcribe", {"languages": taken}, environment={})
    limits = read_limits(parameters, own)
    assert language_of(rounds, limits, "guten Tag", found) == said


def test_without_a_text_there_is_no_language(rounds):
    limits = TranscriptionLimits(("de",), 5_000, 8_000, written_in="de")
    assert language_of(rounds, limits, "", "") == ""


def language_of(rounds, limits, text, found):
    service = TranscriptionService(lambda *_: Transcribed(text, found), rounds, limits)
    rounds.act = rounds.nothing
    rounds.permits.release(100)
    try:
        return submit(service, message=b'{"language": ""}').wait().reply.language
    finally:
        service.close(TIMEOUT_S)


def test_a_later_request_joins_the_next_round(service, rounds):
    rounds.act = rounds.nothing
    submit(service)
    rounds.began.acquire(timeout=TIMEOUT_S)
    submit(service)
    rounds.permits.release()
    rounds.began.acquire(timeout=TIMEOUT_S)
    rounds.permits.release()
    rounds.began.acquire(timeout=TIMEOUT_S)
    assert rounds.sizes == [1, 2]


@pytest.mark.parametrize(
    ("audio", "message", "error"),
    [
        (np.zeros(0, np.int16), b"{}", InvalidAudioError),
        (np.zeros(80_001, np.int16), b"{}", InvalidAudioError),
        (np.zeros(100, np.float32), b"{}", InvalidAudioError),
        (np.zeros((2, 100), np.int16), b"{}", InvalidAudioError),
        (SECOND, np.array([[b"{}"], [b"{}"]], np.object_), InvalidMessageError),
        (SECOND, b"garbage", InvalidMessageError),
        (SECOND, b'{"words": "perhaps"}', InvalidMessageError),
        (SECOND, b'{"nbest": -1}', InvalidMessageError),
        (SECOND, b"\xff", InvalidMessageError),
        (SECOND, b"[" * 100_000, InvalidMessageError),
        (SECOND, b'{"language": "tlh"}', UnsupportedLanguageError),
    ],
)
def test_invalid_request_is_refused(service, audio, message, error):
    with pytest.raises(error):
        submit(service, audio=audio, message=message)


def test_the_longest_recording_is_taken(service, rounds):
    caller = submit(service, audio=np.zeros(80_000, np.int16))
    rounds.permits.release()
    assert caller.wait().reply is not None


def test_too_much_waiting_audio_is_refused_until_some_is_done(service, rounds):
    first, second = submit(service, audio=np.tile(SECOND, 5)), submit(service, audio=np.tile(SECOND, 3))
    with pytest.raises(OverloadedError):
        submit(service)
    rounds.permits.release(2)
    first.wait()
    second.wait()
    rounds.permits.release()
    assert submit(service).wait().reply is not None


def test_an_error_fails_its_own_request_only(service, rounds):
    def fail_first(recordings):
        recordings[0].error = InferenceError("broken")

    rounds.act = fail_first
    first, second = submit(service), submit(service)
    rounds.permits.release()
    assert isinstance(first.wait().error, InferenceError)
    rounds.act = rounds.finish_first
    rounds.permits.release()
    assert second.wait().reply is not None


def test_a_bug_fails_all_and_the_service_goes_on(service, rounds):
    def explode(recordings):
        raise ZeroDivisionError("oh")

    rounds.act = explode
    caller = submit(service)
    rounds.permits.release()
    error = caller.wait().error
    assert type(error) is ParleyError
    assert "ZeroDivisionError" in str(error)
    rounds.act = rounds.finish_first
    rounds.permits.release()
    assert submit(service).wait().reply is not None


def test_a_cancelled_request_is_not_worked_on(service, rounds):
    rounds.act = rounds.nothing
    gone, patient = submit(service), submit(service)
    gone.cancelled = True
    rounds.permits.release(2)
    gone.wait()
    rounds.act = rounds.finish_first
    rounds.permits.release(3)
    assert patient.wait().reply is not None
    assert gone.reply is None


def test_an_answer_that_cannot_be_sent_does_not_stop_the_others(service, rounds):
    submit(service, broken=True)
    good = submit(service)
    rounds.permits.release(2)
    assert good.wait().reply is not None


def test_closing_refuses_what_is_not_done_and_what_comes(service, rounds):
    rounds.act = rounds.nothing
    caller = submit(service)
    rounds.began.acquire(timeout=TIMEOUT_S)
    closing = threading.Thread(target=service.close, args=(TIMEOUT_S,))
    closing.start()
    rounds.permits.release()
    closing.join(TIMEOUT_S)
    assert isinstance(caller.wait().error, ShuttingDownError)
    with pytest.raises(ShuttingDownError):
        submit(service)
