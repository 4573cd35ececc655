"""What is read about processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from parley.launcher.processes import child_state, kill_process, processor_s


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


def test_a_stopped_child_is_told_from_a_running_one(child):
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
        while (used_s := processor_s([working.pid])) < 0.05:
            assert time.monotonic() < end, used_s
            time.sleep(0.01)
        assert processor_s([os.getpid()]) >= used_s
    finally:
        working.kill()
        working.wait()
    assert processor_s([working.pid]) == 0.0
