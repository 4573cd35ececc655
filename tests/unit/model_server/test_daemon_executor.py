"""Threads for calls that may never return."""

import subprocess
import sys
import threading

import pytest

from parley.runtime.daemon_executor import DaemonExecutor

HANGS = """
import asyncio, threading
from parley.triton.model_client import InProcessClient
from parley.inference import ModelRequest

class PbUtils:
    class InferenceRequest:
        def __init__(self, **_): pass
        def async_exec(self):
            return asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)

async def main():
    client = InProcessClient(PbUtils)
    try:
        await client.infer(ModelRequest("m", {}, (), timeout_s=0.1))
    except Exception as error:
        print(type(error).__name__)
    await client.close()

loop = asyncio.new_event_loop()
loop.run_until_complete(main())
loop.close()
"""


def test_calls_are_made_by_at_most_so_many_threads():
    executor = DaemonExecutor(2, "calls")
    go, names = threading.Event(), set()

    def call(number):
        names.add(threading.current_thread().name)
        go.wait(10)
        return number

    futures = [executor.submit(call, number) for number in range(6)]
    go.set()
    assert [future.result(10) for future in futures] == list(range(6))
    assert names <= {"calls_1", "calls_2"}
    executor.shutdown()


def test_an_idle_thread_is_used_again():
    executor = DaemonExecutor(8)
    threads = set()
    for _ in range(20):
        executor.submit(lambda: threads.add(threading.get_ident())).result(10)
    # The next call may come before a thread has noted that it is idle.
    assert len(threads) <= 2
    executor.shutdown()


def test_errors_are_those_of_the_call():
    executor = DaemonExecutor(1)
    with pytest.raises(ZeroDivisionError):
        executor.submit(lambda: 1 / 0).result(10)
    executor.shutdown()


def test_shutdown_cancels_what_waits_and_takes_no_more():
    executor = DaemonExecutor(1)
    go, began = threading.Event(), threading.Event()
    running = executor.submit(lambda: (began.set(), go.wait(10)))
    assert began.wait(10)
    waiting = executor.submit(int)
    executor.shutdown(cancel_futures=True)
    assert waiting.cancelled()
    with pytest.raises(RuntimeError, match="closed"):
        executor.submit(int)
    go.set()
    assert running.result(10)


def test_shutdown_ends_threads_that_are_busy_then():
    executor = DaemonExecutor(4, "busy")
    go, began = threading.Event(), threading.Barrier(5)
    running = [executor.submit(lambda: (began.wait(10), go.wait(10))) for _ in range(4)]
    began.wait(10)
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("busy")]
    executor.shutdown()
    go.set()
    assert len(threads) == len([future.result(10) for future in running]) == 4
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)


def test_a_call_that_never_returns_does_not_keep_the_process():
    done = subprocess.run(
        [sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout.strip(), done.returncode) == ("DeadlineExceededError", 0), done.stderr
