"""The thread that reads for all streams."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from attention_fakes import NOTHING, LengthNetwork, broken, new_reader

from parley.asr.reader import Stretch
from parley.asr.utterances.worker import Source, ThreadedReader
from parley.errors import (
    InferenceError,
    ModelUnavailableError,
    OverloadedError,
    ParleyError,
    ShuttingDownError,
)
from parley.runtime.onnx import StoppedError

TIMEOUT_S = 10


class SteppedNetwork(LengthNetwork):
    """Encodes when the test permits it."""

    def __init__(self):
        super().__init__()
        self.began = threading.Semaphore(0)
        self.permits = threading.Semaphore(0)

    def encode(self, audio, stop):
        self.began.release()
        while not self.permits.acquire(timeout=0.005):
            if stop.requested:
                raise StoppedError
        return super().encode(audio, stop)


@pytest.fixture
def network():
    return SteppedNetwork()


@pytest.fixture
def clock():
    class Clock:
        now = 0.0

        def __call__(self):
            return self.now

    return Clock()


@pytest.fixture
def text_reader(network, clock):
    text_reader = ThreadedReader(new_reader(network), room=3, stall_s=20.0, clock=clock)
    yield text_reader
    network.permits.release(100)
    text_reader.close(TIMEOUT_S)


def audio(ms):
    return np.full(16 * ms, 9_000, np.int16)


def ask(text_reader, ms, *, final=True, of=None):
    return text_reader.ask(Stretch(audio(ms), NOTHING), final=final, of=of or Source(object(), 1))


def begun(network):
    assert network.began.acquire(timeout=TIMEOUT_S)


def text(asked):
    found = asked.future.result(TIMEOUT_S)
    return found and found.text


def test_final_texts_come_before_partial_ones_each_in_order_of_arrival(text_reader, network):
    first = ask(text_reader, 100)
    begun(network)
    rest = [ask(text_reader, ms, final=ms % 200 == 100) for ms in (200, 300, 400, 500)]
    network.permits.release(5)
    assert [text(asked) for asked in (first, *rest)] == ["t10", "t20", "t30", "t40", "t50"]
    assert [samples // 16 for samples in network.read] == [100, 300, 500, 200, 400]


@pytest.mark.parametrize("reason", ["a final text", "its owner"])
def test_the_encoder_of_a_partial_text_is_stopped(text_reader, network, reason):
    partial = ask(text_reader, 100, final=False)
    begun(network)
    if reason == "its owner":
        partial.drop()
    final = ask(text_reader, 200)
    begun(network)  # though the encoder of the partial text was not permitted to go on
    assert partial.result() is None
    network.permits.release()
    assert text(final) == "t20"
    assert [samples // 16 for samples in network.read] == [200]


def test_a_dropped_request_is_not_read(text_reader, network):
    first = ask(text_reader, 100)
    begun(network)
    unwanted, wanted = ask(text_reader, 200), ask(text_reader, 300)
    unwanted.drop()
    network.permits.release(3)
    assert text(wanted) == "t30"
    assert [samples // 16 for samples in network.read] == [100, 300]
    assert text(first) == "t10"


def test_waiting_final_texts_are_bounded(text_reader, network):
    ask(text_reader, 100)
    begun(network)
    waiting = [ask(text_reader, 200) for _ in range(3)]
    with pytest.raises(OverloadedError):
        ask(text_reader, 300)
    ask(text_reader, 300, final=False)  # these have places of their own
    waiting[1].drop()
    ask(text_reader, 400)


def test_streams_take_turns(text_reader, network):
    texts = [ask(text_reader, 100, of=Source("a", 1))]
    begun(network)
    texts += [ask(text_reader, ms, of=Source("a", ms)) for ms in (200, 300)]
    texts.append(ask(text_reader, 400, of=Source("b", 1)))
    network.permits.release(4)
    assert [text(asked) for asked in texts] == ["t10", "t20", "t30", "t40"]
    assert [samples // 16 for samples in network.read] == [100, 400, 200, 300]


def test_the_texts_that_wait_of_one_stream_are_bounded(network, clock):
    text_reader = ThreadedReader(new_reader(network), room=100, clock=clock)
    ask(text_reader, 100)
    begun(network)
    mine = [ask(text_reader, 200, of=Source("a", number)) for number in range(8)]
    with pytest.raises(OverloadedError, match="8 texts of this stream"):
        ask(text_reader, 300, of=Source("a", 9))
    mine[0].drop()
    ask(text_reader, 300, of=Source("a", 9))
    ask(text_reader, 400, of=Source("b", 1))
    network.permits.release(100)
    text_reader.close(TIMEOUT_S)


def test_a_text_that_cannot_be_read_fails_alone(text_reader, network):
    network.failure = broken()
    failing = ask(text_reader, 100)
    network.permits.release()
    with pytest.raises(InferenceError):
        text(failing)
    network.failure = None
    network.permits.release()
    assert text(ask(text_reader, 200)) == "t20"
    text_reader.check()


def test_an_unforeseen_failure_has_an_error_of_the_project(text_reader, network, caplog):
    network.failure = ValueError("odd")
    failing = ask(text_reader, 100)
    network.permits.release()
    with pytest.raises(ParleyError, match="ValueError: odd"):
        text(failing)
    assert "cannot be read" in caplog.text


def test_networks_that_fail_again_and_again_are_broken(text_reader, network):
    network.failure = broken()
    for ms in (100, 200, 300):
        text_reader.check()
        fail(text_reader, network, ms)
    with pytest.raises(ModelUnavailableError, match="the last 3 stretches of speech nor silence"):
        text_reader.check()


def test_audio_that_cannot_be_read_fails_its_own_stream_only(text_reader, network):
    network.failure, network.fails_on_silence = broken(), False
    for ms in range(100, 1_000, 100):
        fail(text_reader, network, ms, of=Source("stream", ms))
        text_reader.check()
    network.failure = None
    network.permits.release()
    assert text(ask(text_reader, 500)) == "t50"
    text_reader.check()


def test_networks_that_read_nothing_but_silence_are_broken(text_reader, network):
    network.failure, network.fails_on_silence = broken(), False
    for number in range(9):
        text_reader.check()
        fail(text_reader, network, 100 + 100 * number, of=Source(f"stream {number}", 1))
    with pytest.raises(ModelUnavailableError, match="no speech of the last 8 streams"):
        text_reader.check()


def test_networks_that_hang_on_silence_are_noticed(text_reader, network, clock):
    network.failure, network.fails_on_silence = broken(), False
    for ms in (100, 200):
        fail(text_reader, network, ms)
    asked = ask(text_reader, 300)
    begun(network)
    network.permits.release()
    begun(network)
    clock.now = 20.1
    with pytest.raises(ModelUnavailableError, match="over 20 s"):
        text_reader.check()
    network.permits.release()
    with pytest.raises(InferenceError):
        text(asked)


def fail(text_reader, network, ms, **options):
    """Have a stretch read that fails, and silence if that is read after it."""
    asked = ask(text_reader, ms, **options)
    while not asked.done:
        if network.began.acquire(timeout=0.005):
            network.permits.release()
    with pytest.raises(InferenceError):
        text(asked)


def test_a_stretch_that_is_tried_again_and_again_is_one_failure(text_reader, network):
    network.failure = broken()
    for _ in range(5):
        fail(text_reader, network, 100)  # as a client sends it in stream after stream
    for ms in (110, 120, 130):
        fail(text_reader, network, ms, of=Source("stream", 1), final=ms == 130)
    text_reader.check()
    fail(text_reader, network, 140)
    with pytest.raises(ModelUnavailableError):
        text_reader.check()


def test_failures_count_from_the_last_text_that_was_read(text_reader, network):
    network.failure = broken()
    for ms in (100, 200):
        fail(text_reader, network, ms)
    network.failure = None
    network.permits.release()
    assert text(ask(text_reader, 300)) == "t30"
    network.failure = broken()
    for ms in (100, 200):
        fail(text_reader, network, ms)
    text_reader.check()


def test_a_text_that_takes_too_long_will_never_come(text_reader, network, clock):
    ask(text_reader, 100)
    begun(network)
    clock.now = 20.0
    text_reader.check()
    clock.now = 20.1
    with pytest.raises(ModelUnavailableError, match="over 20 s"):
        text_reader.check()


def test_time_of_a_text_includes_its_wait(text_reader, network, clock):
    first = ask(text_reader, 100)
    begun(network)
    second = ask(text_reader, 200)
    clock.now = 0.5
    network.permits.release(2)
    assert text(second) == "t20"
    assert (first.took_ms, second.took_ms) == (500.0, 500.0)


def test_a_reader_that_closes_refuses_what_waits(network, clock):
    text_reader = ThreadedReader(new_reader(network), room=3, clock=clock)
    ask(text_reader, 100)
    begun(network)
    waiting = ask(text_reader, 200)
    network.permits.release()
    text_reader.close(TIMEOUT_S)
    with pytest.raises(ShuttingDownError):
        text(waiting)
    with pytest.raises(ShuttingDownError):
        ask(text_reader, 300)
