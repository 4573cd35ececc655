"""The thread that reads for all streams."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from moonshine_fakes import LengthNetwork, broken, new_reader

from parley.asr.decoding.boosting import PhraseAutomaton
from parley.asr.moonshine.worker import ThreadedReader
from parley.errors import (
    InferenceError,
    ModelUnavailableError,
    OverloadedError,
    ParleyError,
    ShuttingDownError,
)

NOTHING = PhraseAutomaton.nothing()
TIMEOUT_S = 10


class SteppedNetwork(LengthNetwork):
    """Encodes when the test permits it."""

    def __init__(self):
        super().__init__()
        self.began = threading.Semaphore(0)
        self.permits = threading.Semaphore(0)

    def encode(self, audio):
        self.began.release()
        assert self.permits.acquire(timeout=TIMEOUT_S)
        return super().encode(audio)


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
def desk(network, clock):
    desk = ThreadedReader(new_reader(network), room=3, stall_s=20.0, clock=clock)
    yield desk
    network.permits.release(100)
    desk.close(TIMEOUT_S)


def audio(ms):
    return np.full(16 * ms, 9_000, np.int16)


def ask(desk, ms, *, final=True, of=None):
    return desk.ask(audio(ms), NOTHING, final=final, of=of or object())


def begun(network):
    assert network.began.acquire(timeout=TIMEOUT_S)


def text(asked):
    found = asked.future.result(TIMEOUT_S)
    return found and found.text


def test_final_texts_come_before_partial_ones_each_in_order_of_arrival(desk, network):
    first = ask(desk, 100)
    begun(network)
    rest = [ask(desk, ms, final=ms % 200 == 100) for ms in (200, 300, 400, 500)]
    network.permits.release(5)
    assert [text(asked) for asked in (first, *rest)] == ["t10", "t20", "t30", "t40", "t50"]
    assert [samples // 16 for samples in network.read] == [100, 300, 500, 200, 400]


def test_a_partial_text_is_given_up_for_a_final_one(desk, network):
    partial = ask(desk, 100, final=False)
    begun(network)
    final = ask(desk, 200)
    network.permits.release(2)
    assert text(final) == "t20"
    assert partial.result() is None


def test_a_final_text_is_not_given_up(desk, network):
    first = ask(desk, 100)
    begun(network)
    second = ask(desk, 200)
    network.permits.release(2)
    assert [text(first), text(second)] == ["t10", "t20"]


def test_what_nobody_wants_is_not_read(desk, network):
    first = ask(desk, 100)
    begun(network)
    unwanted, wanted = ask(desk, 200), ask(desk, 300)
    unwanted.drop()
    network.permits.release(3)
    assert text(wanted) == "t30"
    assert [samples // 16 for samples in network.read] == [100, 300]
    assert text(first) == "t10"


def test_so_many_may_wait_and_no_more(desk, network):
    ask(desk, 100)
    begun(network)
    waiting = [ask(desk, 200) for _ in range(3)]
    with pytest.raises(OverloadedError):
        ask(desk, 300)
    ask(desk, 300, final=False)  # these have places of their own
    waiting[1].drop()
    ask(desk, 400)


def test_a_text_that_cannot_be_read_fails_alone(desk, network):
    network.failure = broken()
    failing = ask(desk, 100)
    network.permits.release()
    with pytest.raises(InferenceError):
        text(failing)
    network.failure = None
    network.permits.release()
    assert text(ask(desk, 200)) == "t20"
    desk.check()


def test_an_unforeseen_failure_is_told_as_one_of_the_project(desk, network, caplog):
    network.failure = ValueError("odd")
    failing = ask(desk, 100)
    network.permits.release()
    with pytest.raises(ParleyError, match="ValueError: odd"):
        text(failing)
    assert "cannot be read" in caplog.text


def test_networks_that_fail_again_and_again_are_broken(desk, network):
    network.failure = broken()
    for ms in (100, 200, 300):
        desk.check()
        fail(desk, network, ms)
    with pytest.raises(ModelUnavailableError, match="the last 3 stretches"):
        desk.check()


def fail(desk, network, ms, **options):
    network.permits.release()
    with pytest.raises(InferenceError):
        text(ask(desk, ms, **options))


def test_a_stretch_that_is_tried_again_and_again_is_one_failure(desk, network):
    network.failure = broken()
    for _ in range(5):
        fail(desk, network, 100)  # as a client sends it in stream after stream
    for ms in (110, 120, 130):
        fail(desk, network, ms, of="utterance", final=ms == 130)
    desk.check()
    fail(desk, network, 140)
    with pytest.raises(ModelUnavailableError):
        desk.check()


def test_failures_count_from_the_last_text_that_was_read(desk, network):
    network.failure = broken()
    for ms in (100, 200):
        fail(desk, network, ms)
    network.failure = None
    network.permits.release()
    assert text(ask(desk, 300)) == "t30"
    network.failure = broken()
    for ms in (100, 200):
        fail(desk, network, ms)
    desk.check()


def test_a_text_that_takes_too_long_will_never_come(desk, network, clock):
    ask(desk, 100)
    begun(network)
    clock.now = 20.0
    desk.check()
    clock.now = 20.1
    with pytest.raises(ModelUnavailableError, match="over 20 s"):
        desk.check()


def test_how_long_a_text_took_includes_its_wait(desk, network, clock):
    first = ask(desk, 100)
    begun(network)
    second = ask(desk, 200)
    clock.now = 0.5
    network.permits.release(2)
    assert text(second) == "t20"
    assert (first.took_ms, second.took_ms) == (500.0, 500.0)


def test_a_desk_that_closes_refuses_what_waits(network, clock):
    desk = ThreadedReader(new_reader(network), room=3, clock=clock)
    ask(desk, 100)
    begun(network)
    waiting = ask(desk, 200)
    network.permits.release()
    desk.close(TIMEOUT_S)
    with pytest.raises(ShuttingDownError):
        text(waiting)
    with pytest.raises(ShuttingDownError):
        ask(desk, 300)
