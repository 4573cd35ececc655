"""What is read about processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from parley.launcher.processes import child_state, kill_process, processor_demand_s, waiting_s


@pytest.fixture
def child():
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def until_state(pid, states):
    end = time.monotonic() + 10
    while (state := child_state(pid, os.getpid())) not in states:
        assert time.monotonic() < end, state
        time.sleep(0.01)


def test_stopped_child_differs_from_a_running_one(child):
    until_state(child.pid, "RS")
    os.kill(child.pid, signal.SIGSTOP)
    until_state(child.pid, "T")
    os.kill(child.pid, signal.SIGCONT)
    until_state(child.pid, "RS")


def test_a_child_that_was_not_waited_for_has_ended_all_the_same(child):
    kill_process(child.pid)
    until_state(child.pid, [""])
    child.wait()
    assert child_state(child.pid, os.getpid()) == ""
    kill_process(child.pid)  # it may have ended


def test_a_process_of_another_parent_is_no_child():
    assert child_state(os.getpid(), os.getpid()) == ""


def test_the_processor_time_of_a_process_has_that_of_its_children():
    working = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        end = time.monotonic() + 30
        while (used_s := processor_demand_s([working.pid])) < 0.05:
            assert time.monotonic() < end, used_s
            time.sleep(0.01)
        assert processor_demand_s([os.getpid()]) >= used_s
    finally:
        working.kill()
        working.wait()
    assert processor_demand_s([working.pid]) == 0.0


def test_that_waiting_for_a_processor_is_demand():
    """Two processes on one processor: each gets half of it, and needs all."""
    both = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        for process in both:
            os.sched_setaffinity(process.pid, {min(os.sched_getaffinity(0))})
        end = time.monotonic() + 30
        while (waited_s := waiting_s(both[0].pid)) < 0.05:
            assert time.monotonic() < end, waited_s
            time.sleep(0.01)
        times = psutil.Process(both[0].pid).cpu_times()
        assert processor_demand_s([both[0].pid]) >= times.user + times.system + waited_s
    finally:
        for process in both:
            process.kill()
            process.wait()
    assert waiting_s(both[0].pid) == 0.0


def test_that_the_waits_of_all_threads_are_added_up(tmp_path):
    for thread, text in {"7": "5 1500000000 9", "8": "5 250000000 9", "9": ""}.items():
        (tmp_path / "7/task" / thread).mkdir(parents=True)
        (tmp_path / "7/task" / thread / "schedstat").write_text(text)
    assert waiting_s(7, tmp_path) == 1.75


def test_that_a_kernel_without_these_numbers_knows_no_waits(tmp_path):
    (tmp_path / "7/task/7").mkdir(parents=True)
    assert waiting_s(7, tmp_path) == 0.0
