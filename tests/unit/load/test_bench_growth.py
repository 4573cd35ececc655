"""Questions and answers of ``make bench-growth``."""

from __future__ import annotations

import io
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import bench_growth
import pytest
from bench_growth import Level, all_answered
from rich.console import Console

CYCLE_S = 160 * 0.032


class Clock:
    now = 0.0

    def perf_counter(self):
        return self.now

    async def sleep(self, seconds):
        self.now += seconds


class Call:
    """Takes audio."""

    def __init__(self):
        self.loud = []

    async def send_audio(self, audio):
        self.loud.append(bool(audio.any()))


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(bench_growth, "time", clock)
    monkeypatch.setattr(bench_growth, "asyncio", SimpleNamespace(sleep=clock.sleep))
    monkeypatch.setattr(bench_growth, "random", SimpleNamespace(random=lambda: 0.0, randrange=lambda _: 0))
    return clock


async def asked(clock, interval_s, seconds):
    caller = bench_growth._Caller(Call(), interval_s)
    await caller.speak(clock.now + seconds)
    return caller


@pytest.mark.parametrize(
    ("seconds", "due"),
    [
        (0.9, 0),  # a question, and no time for an answer
        (5.5, 0),
        (6.0, 1),
        (6.0 + CYCLE_S, 2),
    ],
)
async def test_questions_are_due_some_time_after_their_end(clock, seconds, due):
    caller = await asked(clock, 0.032, seconds)
    assert caller.count_due() == due


async def test_a_fast_call_asks_more_often_and_a_slow_one_less(clock):
    fast = await asked(clock, 1 / 128, 30)
    assert fast.count_due() == 20, "the last of its 24 questions are too young"
    slow = await asked(clock, 0.5, 30)
    assert slow.count_due() == 1
    slower = await asked(clock, 0.6, 30)
    assert slower.count_due() == 0, "the silence after its question is too short"


async def test_half_a_question_is_none(clock, monkeypatch):
    monkeypatch.setattr(bench_growth.random, "randrange", lambda _: 12)
    caller = await asked(clock, 0.032, 9.0)
    assert sum(caller.call.loud[:24]) == 12
    assert caller.count_due() == 0


def level(*, questions=10, unanswered=0, answers=10):
    return Level(
        4, 4_000, questions, unanswered, 12, 30.0, {"agent": 1.0}, 1.0, [1.0], [500.0] * answers, 0.1
    )


@pytest.mark.parametrize(
    ("given", "status", "said"),
    [
        ({}, 0, ""),
        ({"unanswered": 1, "answers": 5}, 1, "4 calls: 5 answers to 10 questions"),
        ({"questions": 0, "answers": 0}, 1, "4 calls: 0 answers to 0 questions"),
    ],
)
def test_questions_without_an_answer_are_a_failure(given, status, said, monkeypatch, capsys):
    async def measure(*_):
        return level(**given)

    monkeypatch.setattr(bench_growth, "null_server", lambda *_: nullcontext())
    monkeypatch.setattr(bench_growth, "measure", measure)
    monkeypatch.setattr(sys, "argv", ["bench_growth.py", "--calls", "4"])
    assert bench_growth.main() == status
    assert said in capsys.readouterr().out


def test_levels_are_named():
    output = io.StringIO()
    levels = [level(), level(unanswered=2)]
    assert not all_answered(Console(file=output), levels)
    assert len(output.getvalue().splitlines()) == 1
