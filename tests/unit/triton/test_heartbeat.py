"""Signs that an event loop turns."""

from __future__ import annotations

import os
import threading
import time

import pytest

from parley.triton.model_control import FOLDER_VARIABLE
from parley.triton.request_loop import LoopThread, beat, heartbeat_path


@pytest.fixture
def loop():
    thread = LoopThread("conversations")
    yield thread
    thread.stop(10)


def until_it_beats(path):
    before = path.stat().st_mtime_ns if path.exists() else 0
    end = time.monotonic() + 10
    while not path.exists() or path.stat().st_mtime_ns == before:
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_loop_that_turns_gives_signs_and_one_that_stands_still_gives_none(loop, tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    path = heartbeat_path(tmp_path, os.getpid())
    task = loop.submit(beat(0.005))
    until_it_beats(path)
    until_it_beats(path)

    held, blocked = threading.Event(), threading.Event()

    def block():
        blocked.set()
        held.wait(10)

    loop.call(block)
    assert blocked.wait(10)
    last = path.stat().st_mtime_ns
    time.sleep(0.1)
    assert path.stat().st_mtime_ns == last
    held.set()
    until_it_beats(path)
    task.cancel()


def test_without_a_launcher_nothing_is_written(loop, monkeypatch):
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    loop.run(beat(), 10)
