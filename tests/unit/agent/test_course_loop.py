"""The event loop of a server that records calls as a whole."""

import asyncio
import threading
import time

from parley.replay.course import SteppedLoop


def run(work):
    with asyncio.Runner(loop_factory=SteppedLoop) as runner:
        return runner.run(work)


def test_steps_of_one_iteration_have_the_same_time():
    async def work():
        loop = asyncio.get_running_loop()
        began, clock = loop.time(), time.monotonic()
        while time.monotonic() == clock:
            pass
        assert loop.time() == began
        await asyncio.sleep(0.001)
        assert loop.time() > began

    run(work())


def test_timers_that_are_due_at_once_are_called_in_the_order_in_which_they_were_made():
    async def work():
        loop, called, last = asyncio.get_running_loop(), [], asyncio.Event()
        when = loop.time() + 0.01
        for number in range(20):
            loop.call_at(when, called.append, number)
        loop.call_at(when, last.set)
        await last.wait()
        return called

    assert run(work()) == list(range(20))


def test_loop_wakes_for_another_thread():
    async def work():
        done = asyncio.Event()
        loop = asyncio.get_running_loop()
        thread = threading.Thread(target=lambda: loop.call_soon_threadsafe(done.set))
        thread.start()
        await done.wait()
        thread.join()

    run(work())
