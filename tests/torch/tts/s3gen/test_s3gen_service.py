"""Utterances of many clients and the thread that makes their audio."""

import queue
import threading

import numpy as np
import pytest
from s3gen_fakes import make_tokens, make_voice

from parley.errors import (
    InferenceError,
    InvalidInputError,
    InvalidMessageError,
    SessionIdleError,
    SessionNotFoundError,
    ShuttingDownError,
    TooManySessionsError,
    UnsupportedSampleRateError,
)
from parley_torch.tts.s3gen.messages import OpenUtterance, PushTokens
from parley_torch.tts.s3gen.scheduling import S3GenLimits
from parley_torch.tts.s3gen.service import S3GenService, ServiceLimits
from parley_torch.tts.s3gen.utterance import Plan

WAIT_S = 20.0
NONE = np.zeros(0, np.int32)


class Sink:
    """Collects the audio and the end of an utterance."""

    def __init__(self):
        self.pieces = []
        self.ended = threading.Event()
        self.error = None
        self.open = True

    def send(self, chunk, audio):
        assert not self.ended.is_set(), "nothing follows the end"
        self.pieces.append((chunk, audio))
        return self.open

    def finish(self):
        self.ended.set()

    def fail(self, error):
        self.error = error
        self.ended.set()

    @property
    def samples(self):
        return sum(len(audio) for _, audio in self.pieces)

    def wait(self):
        assert self.ended.wait(WAIT_S)
        return self


class Gated:
    """A synthesizer that waits before each step until the test lets it go on."""

    vocabulary = 6561

    def __init__(self, synthesizer):
        self._synthesizer = synthesizer
        self._gate = queue.SimpleQueue()
        self.begun = queue.SimpleQueue()
        self.thread = None

    def begin(self):
        self.thread = threading.current_thread()

    def go(self, times=1):
        for _ in range(times):
            self._gate.put(True)

    def padded_frames(self, frames):
        return frames

    def prepare(self, utterances):
        self._synthesizer.prepare(utterances)

    def step(self, jobs):
        assert self.thread is threading.current_thread()
        self.begun.put([job.end for job in jobs])
        assert self._gate.get(timeout=WAIT_S)
        return self._synthesizer.step(jobs)


@pytest.fixture
def make_service():
    services = []

    def make(steps, plan=None, **limits):
        service = S3GenService(steps, plan or Plan(), ServiceLimits(**{"batch": S3GenLimits(), **limits}))
        services.append(service)
        return service

    yield make
    for service in services:
        service.close()


def opening(key="a", **fields):
    return OpenUtterance(utterance_id=key, **fields)


def test_an_utterance_from_first_to_last(make_service, synthesizer, voice):
    service, sink = make_service(synthesizer), Sink()
    service.open(opening(), voice, NONE, sink)
    for first in range(0, 60, 6):
        service.push(
            PushTokens(utterance_id="a", first=first, final=first == 54), make_tokens(60)[first : first + 6]
        )
    sink.wait()
    assert sink.error is None
    assert sink.samples == 60 * 960
    assert [chunk.final for chunk, _ in sink.pieces][-1]
    assert len(service) == 0


def test_all_that_wait_share_the_next_step(make_service, synthesizer, voice):
    steps = Gated(synthesizer)
    service = make_service(steps)
    sinks = [Sink() for _ in range(5)]
    for number, sink in enumerate(sinks):
        service.open(opening(str(number), final=True), voice, make_tokens(12, number), sink)
        if number == 0:
            assert len(steps.begun.get(timeout=WAIT_S)) == 1, "the first need not wait for others"
    steps.go(2)
    assert len(steps.begun.get(timeout=WAIT_S)) == 4
    assert [sink.wait().samples for sink in sinks] == [12 * 960] * 5


def test_audio_that_plays_later_is_less_urgent(make_service, synthesizer, voice):
    steps = Gated(synthesizer)
    service = make_service(steps, batch=S3GenLimits(max_batch=1))
    sinks = [Sink() for _ in range(3)]
    for number, (tokens, after_s) in enumerate([(10, 0.0), (11, 30.0), (12, 0.0)]):
        message = opening(str(number), final=True, after_s=after_s)
        service.open(message, voice, make_tokens(tokens), sinks[number])
        if number == 0:
            assert steps.begun.get(timeout=WAIT_S) == [10]
    steps.go(3)
    assert [steps.begun.get(timeout=WAIT_S) for _ in range(2)] == [[12], [11]]
    assert all(sink.wait().error is None for sink in sinks)


@pytest.mark.parametrize("key", ["a", "b"])
def test_stop_silences_a_running_step(make_service, synthesizer, voice, key):
    """The next utterance may have the id of the stopped one."""
    steps, old, new = Gated(synthesizer), Sink(), Sink()
    service = make_service(steps)
    service.open(opening(final=True), voice, make_tokens(40), old)
    steps.begun.get(timeout=WAIT_S)
    service.stop("a")
    assert old.ended.is_set()
    assert len(service) == 0
    service.open(opening(key, final=True), voice, make_tokens(8), new)
    steps.go(2)
    assert new.wait().samples == 8 * 960
    assert old.pieces == []


def test_a_stop_that_overtakes_its_utterance(make_service, synthesizer, voice):
    service, sink = make_service(synthesizer), Sink()
    service.stop("a")
    service.open(opening(final=True), voice, make_tokens(20), sink)
    assert sink.ended.is_set()
    assert sink.pieces == []


def test_a_client_that_cancelled(make_service, synthesizer, voice):
    service, sink = make_service(synthesizer), Sink()
    sink.open = False
    service.open(opening(), voice, make_tokens(15), sink)
    sink.wait()
    assert sink.error is None
    assert len(sink.pieces) == 1
    assert len(service) == 0


def test_no_tokens_at_all(make_service, synthesizer, voice):
    service, sink = make_service(synthesizer), Sink()
    service.open(opening(final=True), voice, NONE, sink)
    assert sink.ended.is_set()
    assert len(service) == 0


@pytest.mark.parametrize("raised", [True, False])
def test_failures_end_the_utterance_and_nothing_else(make_service, synthesizer, voice, raised):
    class Failing(Gated):
        error = InferenceError("broken")

        def step(self, jobs):
            if self.error and raised:
                raise self.error
            return [self.error for _ in jobs] if self.error else synthesizer.step(jobs)

    steps, sink, other = Failing(synthesizer), Sink(), Sink()
    service = make_service(steps)
    service.open(opening(final=True), voice, make_tokens(20), sink)
    assert "broken" in str(sink.wait().error)
    assert len(service) == 0
    steps.error = None
    service.open(opening("b", final=True), voice, make_tokens(5), other)
    assert other.wait().error is None


class Unreachable(Sink):
    """A request that can neither be answered nor ended."""

    def send(self, chunk, audio):
        raise RuntimeError("no shared memory")

    def fail(self, error):
        super().fail(error)
        raise RuntimeError("no shared memory")


def test_a_sink_that_fails_harms_no_other_utterance(make_service, synthesizer, voice):
    steps, lost, other, late = Gated(synthesizer), Unreachable(), Sink(), Sink()
    service = make_service(steps)
    service.open(opening(), voice, make_tokens(20), lost)
    steps.begun.get(timeout=WAIT_S)
    service.open(opening("b", final=True), voice, make_tokens(20), other)
    steps.go(20)
    assert "no shared memory" in str(lost.wait().error)
    assert other.wait().error is None
    service.open(opening("c", final=True), voice, make_tokens(5), late)
    assert late.wait().samples == 5 * 960
    assert len(service) == 0


@pytest.mark.parametrize("kind", [Sink, Unreachable])
def test_an_utterance_without_tokens_fails(make_service, synthesizer, voice, kind):
    service, idle, other = make_service(synthesizer, idle_s=0.2), kind(), Sink()
    service.open(opening(), voice, make_tokens(5), idle)
    assert isinstance(idle.wait().error, SessionIdleError)
    assert len(service) == 0
    service.open(opening("b", final=True), voice, make_tokens(5), other)
    assert other.wait().samples == 5 * 960


def test_simultaneous_requests_share_a_batch(make_service, synthesizer, voice):
    steps, sinks = Gated(synthesizer), [Sink(), Sink(), Sink()]
    service = make_service(steps, gather_s=0.5)
    for name, sink in zip("abc", sinks, strict=True):
        service.open(opening(name, final=True), voice, make_tokens(12), sink)
    assert steps.begun.get(timeout=WAIT_S) == [12, 12, 12]
    steps.go()
    assert {sink.wait().samples for sink in sinks} == {12 * 960}


def test_the_voice_is_prepared_while_tokens_are_awaited(make_service, synthesizer, voice):
    prepared = queue.SimpleQueue()

    class Failing(Gated):
        def prepare(self, utterances):
            prepared.put([utterance.tokens for utterance in utterances])
            raise RuntimeError("out of memory")

    steps, sink = Failing(synthesizer), Sink()
    service = make_service(steps)
    service.open(opening(), voice, NONE, sink)
    assert prepared.get(timeout=WAIT_S) == [0]
    service.push(PushTokens(utterance_id="a", first=0, final=True), make_tokens(12))
    steps.go()
    assert sink.wait().samples == 12 * 960, "it can be made in the step as well"
    assert prepared.empty(), "tried once"


def test_refusals(make_service, synthesizer, voice):
    service, sink = make_service(synthesizer, plan=Plan(max_tokens=30), max_utterances=2), Sink()
    for message, error in [
        (opening(""), InvalidMessageError),
        (opening(sample_rate=4_000), UnsupportedSampleRateError),
        (opening(sample_rate=96_000), UnsupportedSampleRateError),
        (opening(seed=-1), InvalidMessageError),
        (opening(after_s=-0.1), InvalidMessageError),
        (opening(after_s=60.1), InvalidMessageError),
    ]:
        with pytest.raises(error):
            service.open(message, voice, NONE, sink)
    with pytest.raises(InvalidMessageError, match="6561"):
        service.open(opening(), voice, np.array([6561]), sink)
    with pytest.raises(InvalidInputError, match="30 tokens"):
        service.open(opening(), voice, make_tokens(31), sink)
    service.open(opening(), voice, make_tokens(4), sink)
    with pytest.raises(InvalidMessageError, match="in use"):
        service.open(opening(), voice, NONE, Sink())
    with pytest.raises(InvalidMessageError, match="from 3 on arrived after 4"):
        service.push(PushTokens(utterance_id="a", first=3), make_tokens(2))
    with pytest.raises(SessionNotFoundError):
        service.push(PushTokens(utterance_id="z", first=0), NONE)
    service.open(opening("b"), make_voice(3), NONE, Sink())
    with pytest.raises(TooManySessionsError):
        service.open(opening("c"), voice, NONE, Sink())
    assert not sink.ended.is_set()


def test_close_fails_open_utterances_without_waiting(make_service, synthesizer, voice):
    service, sinks = make_service(Gated(synthesizer), gather_s=1_000.0), [Sink(), Sink()]
    service.open(opening("a", final=True), voice, make_tokens(12), sinks[0])
    service.open(opening("b"), voice, make_tokens(3), sinks[1])
    service.close()
    assert all(isinstance(sink.wait().error, ShuttingDownError) for sink in sinks)
    assert not service._thread.is_alive()
    with pytest.raises(ShuttingDownError):
        service.open(opening("c"), voice, NONE, Sink())
