import os

import pytest

from parley.llm.step_threads import StepThreads


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Says how many threads run on eight processors."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    file = tmp_path / "loadavg"

    def write(running):
        file.write_text(f"1.50 1.20 0.90 {running}/873 9396\n")

    write.file = file
    return write


def choose(threads):
    threads.choose()
    return threads.count


def test_a_step_takes_the_processors_that_are_free_but_one(load):
    threads = StepThreads(16, load.file, lambda: 8)
    assert threads.count == 1
    load(1)
    assert choose(threads) == 7
    load(7)  # those of the last step
    assert choose(threads) == 7
    load(10)
    assert choose(threads) == 4
    load(4)
    assert choose(threads) == 7
    load(40)
    assert choose(threads) == 1
    assert choose(threads) == 1


def test_never_more_than_the_limit(load):
    load(1)
    assert choose(StepThreads(4, load.file, lambda: 8)) == 4
    assert choose(StepThreads(1, load.file, lambda: 8)) == 1


@pytest.mark.parametrize(("quota", "most"), [(0.5, 1), (2, 1), (4, 2), (7.9, 3)])
def test_half_of_a_quota_at_most(load, quota, most):
    load(1)
    assert choose(StepThreads(16, load.file, lambda: quota)) == most


@pytest.mark.parametrize("text", ["", "0.00 0.00 0.00 0/0 0\n", "1 2 3 x/7 1\n"])
def test_one_thread_where_nothing_is_counted(load, text):
    threads = StepThreads(4, load.file, lambda: 8)
    load(1)
    assert choose(threads) == 4
    load.file.write_text(text)
    assert choose(threads) == 1
    load.file.unlink()
    assert choose(threads) == 1


def test_two_processors_leave_one_thread(load, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    load(1)
    assert choose(StepThreads(4, load.file, lambda: 2)) == 1
