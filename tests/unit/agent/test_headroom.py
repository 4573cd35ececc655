"""When a server takes one more call."""

from __future__ import annotations

import os
import tempfile
from types import SimpleNamespace

import pytest

from parley.agent.config import AgentConfig
from parley.agent.headroom import FEWEST, WINDOW_S, CallBoard, Headroom, open_board
from parley.errors import TooManySessionsError
from parley.models.voice_agent import make_headroom


class Backend:
    """Answers slower with each call: 400 ms for one, 300 more for each other one."""

    def __init__(self, headroom, clock):
        self.headroom = headroom
        self.clock = clock
        self.calls = 0

    def open(self):
        self.headroom.check()
        self.calls += 1
        self.headroom.set_open(self.calls)

    def close(self):
        self.calls -= 1
        self.headroom.set_open(self.calls)

    def answer(self, count=FEWEST):
        for _ in range(count):
            self.clock.now += 1
            self.headroom.on_answer(100 + 300 * self.calls)


@pytest.fixture
def clock():
    return SimpleNamespace(now=1_000.0)


def make(clock, board=None, p95_ms=1_100, most=0):
    board = board or CallBoard()
    return Headroom(board, p95_ms=p95_ms, most=most, typical_call_s=60, clock=lambda: clock.now)


@pytest.fixture
def backend(clock):
    return Backend(make(clock), clock)


def fill(backend, most=10):
    """Open calls until one is refused, with answers between them; how many there are then."""
    for _ in range(most):
        try:
            backend.open()
        except TooManySessionsError:
            break
        backend.answer()
    return backend.calls


def test_calls_are_taken_until_the_answers_are_late_and_one_less_after_that(backend):
    assert fill(backend) == 4  # 1,300 ms: over the goal, so that no fifth one comes
    backend.close()
    with pytest.raises(
        TooManySessionsError, match="with 3 calls the server answers later than 1100 ms"
    ) as refused:
        backend.open()
    assert refused.value.retry_after_s == 20
    backend.close()
    backend.open()  # three were answered in time
    assert backend.calls == 3


def test_what_was_too_many_is_tried_again_later(backend, clock):
    fill(backend)
    backend.close()
    clock.now += WINDOW_S
    backend.open()
    assert backend.calls == 4


def test_the_first_call_is_always_taken(backend):
    fill(backend)
    while backend.calls:
        backend.close()
    backend.open()


def test_few_answers_and_few_late_ones_refuse_nothing(clock):
    backend = Backend(make(clock, p95_ms=300), clock)
    backend.open()
    backend.answer(FEWEST - 1)
    backend.open()
    backend.close()
    backend = Backend(make(clock), clock)
    backend.open()
    backend.open()
    backend.answer(2 * FEWEST)
    for _ in range(3):
        backend.headroom.on_answer(5_000)  # of 43: no more than chance
    backend.open()
    backend.close()
    for _ in range(5):
        backend.headroom.on_answer(5_000)
    with pytest.raises(TooManySessionsError):
        backend.open()


def test_second_call_is_taken_where_one_alone_is_late(clock):
    assert fill(Backend(make(clock, p95_ms=300), clock)) == 2


def test_without_a_goal_no_answer_is_too_late(clock):
    assert fill(Backend(make(clock, p95_ms=None), clock)) == 10


def test_all_instances_together_have_the_measured_calls(clock, tmp_path):
    boards = [CallBoard(tmp_path / "board", number) for number in range(2)]
    first, second = (make(clock, board, p95_ms=None, most=3) for board in boards)
    first.set_open(1)
    second.set_open(1)
    assert [one.limit(1, 16) for one in (first, second)] == [2, 2]
    first.check()
    first.set_open(2)
    with pytest.raises(TooManySessionsError, match="all 3 sessions"):
        second.check()
    assert [one.limit(own, 16) for one, own in ((first, 2), (second, 1))] == [2, 1]
    first.close()
    assert second.limit(1, 16) == 3
    assert (tmp_path / "board").exists()
    second.close()
    assert not (tmp_path / "board").exists()


def test_an_instance_sees_the_late_answers_of_another_one(clock, tmp_path):
    boards = [CallBoard(tmp_path / "board", number) for number in range(2)]
    first, second = (make(clock, board) for board in boards)
    first.set_open(2)
    for _ in range(FEWEST):
        first.on_answer(2_000)
    with pytest.raises(TooManySessionsError):
        second.check()
    assert (first.limit(2, 4), second.limit(0, 4)) == (2, 0)
    CallBoard(tmp_path / "board", 0)  # its process was replaced
    second.check()


@pytest.mark.parametrize(
    ("instance", "number"), [("voice_agent_0", 0), ("voice_agent_0_3", 3), ("voice_agent_2_0", 2)]
)
def test_instances_of_a_server_share_a_file(monkeypatch, tmp_path, instance, number):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    board = open_board(instance)
    board.set_open(1)
    other = CallBoard(tmp_path / f"parley-voice_agent-{os.getppid()}", number + 1)
    assert (other.open, other.instances) == (1, 2)


def test_a_file_of_another_user_is_not_shared(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / f"parley-voice_agent-{os.getppid()}").touch()
    monkeypatch.setattr(os, "geteuid", lambda: -1)
    board = open_board("voice_agent_0")
    board.set_open(2)
    assert board.open == 2
    assert (tmp_path / f"parley-voice_agent-{os.getppid()}").stat().st_size == 0


@pytest.mark.parametrize("instance", ["voice_agent", "voice_agent_99", "voice_agent_1_0"])
def test_what_cannot_be_shared_counts_for_itself(monkeypatch, tmp_path, instance):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    board = open_board(instance)
    board.set_open(2)
    assert (board.open, board.instances) == (2, 1)


@pytest.mark.parametrize(
    ("changes", "refuses"),
    [
        ({}, False),
        ({"refuse_when_late": True}, True),
        ({"refuse_when_late": True, "llm": ("openai_chat",)}, False),
    ],
)
def test_answers_of_another_server_say_nothing_about_this_one(changes, refuses):
    headroom = make_headroom(AgentConfig(**changes), "agent")
    headroom.set_open(2)
    for _ in range(FEWEST):
        headroom.on_answer(60_000)
    if refuses:
        with pytest.raises(TooManySessionsError):
            headroom.check()
    else:
        headroom.check()
