from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from fake_pb_utils import Request

from parley.errors import OverloadedError
from parley.triton.model_control import FOLDER_VARIABLE
from parley.triton.request_loop import Heartbeat, LoopThread, RequestLoop, heartbeat_path

DATA = {"X": np.array([1], np.int16)}


@pytest.fixture
def start(pb_utils):
    loops = []

    def start(handler, **options):
        loops.append(RequestLoop(pb_utils, handler, **options))
        return loops[-1]

    yield start
    for loop in loops:
        loop.close()


def ended(request):
    assert request.sender.final.wait(5), "the request was not ended"
    return request.sender.sent


def test_answers_in_order_of_arrival(start):
    seen = []

    async def handler(responder, inputs):
        seen.append(int(inputs["X"][0]))
        await asyncio.sleep(0)
        responder.send(inputs)

    loop = start(handler)
    requests = [Request({"X": np.array([n])}) for n in range(20)]
    loop.submit(requests)
    assert all(ended(request)[0][1]["X"].tolist() == [n] for n, request in enumerate(requests))
    assert seen == list(range(20))


def test_inputs_are_copied_before_execute_returns(start):
    shared = np.array([1])
    release = threading.Event()

    async def handler(responder, inputs):
        await asyncio.to_thread(release.wait, 5)
        responder.send(inputs)

    request = Request({"X": shared})
    start(handler).submit([request])
    shared[0] = 99  # Triton takes its memory back
    release.set()
    assert ended(request)[0][1]["X"].tolist() == [1]


def test_a_failing_request_leaves_the_others_alone(start):
    async def handler(responder, inputs):
        if "X" not in inputs:
            raise OverloadedError("no")

    good, bad = Request(DATA), Request()
    start(handler).submit([bad, good])
    assert ended(bad) == [("error", "overloaded: no"), ("final",)]
    assert ended(good) == [("final",)]


def test_work_for_absent_callers_is_cancelled(start):
    cancelled = threading.Event()

    async def handler(responder, inputs):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    request = Request()
    start(handler, poll_cancelled_s=0.001).submit([request])
    request.sender.gone = True
    assert cancelled.wait(5)
    assert ended(request) == [("final",)]


def test_a_caller_that_cannot_be_asked_about_does_not_keep_the_others(start, caplog):
    cancelled = threading.Semaphore(0)

    async def handler(responder, inputs):
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.release()

    broken, gone = Request(DATA, "broken"), Request(DATA, "gone")
    broken.sender.gone, gone.sender.gone = LookupError("no such request"), True
    start(handler, poll_cancelled_s=0.001).submit([broken, gone])
    assert all(cancelled.acquire(timeout=5) for _ in range(2))
    assert ended(gone) == [("final",)]
    assert "no such request" in caplog.text


def test_close_ends_what_is_running_then_releases(pb_utils):
    order = []

    async def handler(responder, inputs):
        try:
            responder.send(DATA)
            await asyncio.Event().wait()
        finally:
            order.append("handler")

    async def release():
        order.append("release")

    loop = RequestLoop(pb_utils, handler)
    request = Request()
    loop.submit([request])
    loop.run(asyncio.sleep(0), 5)
    loop.close(release)
    assert [entry[0] for entry in ended(request)] == ["data", "error", "final"]
    assert order == ["handler", "release"]


def test_close_releases_although_a_request_does_not_end(pb_utils, caplog):
    freed, asked = threading.Event(), threading.Event()

    async def handler(responder, inputs):
        while not freed.is_set():
            try:
                asked.set()
                await asyncio.Event().wait()
            except asyncio.CancelledError:  # as a library does that swallows it
                await asyncio.sleep(0)

    async def release():
        freed.set()

    loop = RequestLoop(pb_utils, handler)
    request = Request()
    loop.submit([request])
    assert asked.wait(5)
    loop.close(release, timeout_s=0.5)
    assert freed.is_set()
    assert ended(request)[-1] == ("final",)
    assert "1 requests did not end" in caplog.text


def test_a_sender_that_fails_is_logged(pb_utils, caplog):
    async def handler(responder, inputs):
        responder.send(DATA)

    loop = RequestLoop(pb_utils, handler)
    request = Request()
    request.sender.broken = True
    loop.submit([request])
    loop.run(asyncio.sleep(0), 5)
    loop.close()
    assert caplog.text.count("a response could not be sent") == 2  # the data, and the end


def test_run_passes_results_and_errors_on(start):
    async def nothing(responder, inputs):
        pass

    async def fail():
        raise OverloadedError("no")

    loop = start(nothing)
    assert loop.run(asyncio.sleep(0, "done"), 5) == "done"
    with pytest.raises(OverloadedError):
        loop.run(fail(), 5)
    with pytest.raises(TimeoutError):
        loop.run(asyncio.sleep(60), 0.01)


@pytest.fixture
def loop_thread():
    thread = LoopThread("conversations")
    yield thread
    thread.stop(10)


def until_it_beats(path):
    before = path.stat().st_mtime_ns if path.exists() else 0
    end = time.monotonic() + 10
    while not path.exists() or path.stat().st_mtime_ns == before:
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_loop_that_turns_gives_signs_and_one_that_stands_still_gives_none(
    loop_thread, tmp_path, monkeypatch
):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    path = heartbeat_path(tmp_path, os.getpid())
    task = loop_thread.submit(Heartbeat(0.005).run())
    until_it_beats(path)
    until_it_beats(path)

    held, blocked = threading.Event(), threading.Event()

    def block():
        blocked.set()
        held.wait(10)

    loop_thread.call(block)
    assert blocked.wait(10)
    last = path.stat().st_mtime_ns
    time.sleep(0.1)
    assert path.stat().st_mtime_ns == last
    held.set()
    until_it_beats(path)
    task.cancel()


def test_without_a_launcher_nothing_is_written(loop_thread, monkeypatch, tmp_path):
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    touched = []
    monkeypatch.setattr(Path, "touch", lambda path, **_: touched.append(path))
    loop_thread.run(Heartbeat().run(), 10)
    assert touched == []
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    with pytest.raises(TimeoutError):
        loop_thread.run(Heartbeat(0.001).run(), 0.05)
    assert set(touched) == {heartbeat_path(tmp_path, os.getpid())}
