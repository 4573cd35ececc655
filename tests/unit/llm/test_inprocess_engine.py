import asyncio
import queue
import threading

import pytest

from parley.errors import (
    DeadlineExceededError,
    InferenceError,
    InvalidInputError,
    ModelLoadingError,
    ModelUnavailableError,
    ShuttingDownError,
)
from parley.llm.engine import EngineRequest, EngineTimes, Progress
from parley.llm.engine_metrics import ENGINE_FAMILIES, ENGINE_QUEUE, EngineMetrics
from parley.llm.inprocess import InProcessEngine
from parley.metrics import MetricsRecorder


class SteppedFake:
    """An engine whose every step waits for the test to say what it reports."""

    def __init__(self):
        self.added = []
        self.aborted = []
        self.running = set()
        self.steps = queue.SimpleQueue()
        self.closed = threading.Event()
        self.threads = set()

    def add(self, request):
        self.threads.add(threading.current_thread().name)
        if request.max_tokens == 0:
            raise ValueError("max_tokens must be at least 1")
        if request.max_tokens < 0:
            raise TypeError("not a number")
        self.added.append(request.request_id)
        self.running.add(request.request_id)

    def abort(self, request_id):
        self.aborted.append(request_id)
        self.running.discard(request_id)

    def busy(self):
        return bool(self.running)

    def step(self):
        reports = self.steps.get(timeout=10)
        if isinstance(reports, Exception):
            raise reports
        for request_id, report in reports:
            if isinstance(report, Exception) or report.finish_reason:
                self.running.discard(request_id)
        return reports

    def close(self):
        self.closed.set()


@pytest.fixture
def fake():
    return SteppedFake()


@pytest.fixture
async def engine(fake):
    engine = InProcessEngine(lambda: fake, stall_timeout_s=5)
    yield engine
    fake.steps.put([])
    await engine.shutdown()
    assert fake.closed.is_set()


def request(request_id="r", max_tokens=8):
    return EngineRequest(request_id, [1, 2], max_tokens)


async def wait_until(condition):
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - of another thread
            await asyncio.sleep(0.001)


async def step_until(fake, condition):
    """Let the engine step without reports until it has come so far."""

    def reached():
        if condition():
            return True
        if fake.steps.empty():
            fake.steps.put([])
        return False

    await wait_until(reached)


async def start(engine, fake, request_id="r"):
    """A request that has reported its first text."""
    stream = engine.generate(request(request_id))
    fake.steps.put([(request_id, Progress("a", 1, 2))])
    assert await anext(stream) == Progress("a", 1, 2)
    return stream


async def test_time_in_the_queue_is_recorded_also_of_an_answer_that_is_left(fake):
    recorder = MetricsRecorder(ENGINE_FAMILIES)
    metrics = EngineMetrics(recorder, "qwen3", "qwen3_0")
    engine = InProcessEngine(lambda: fake, metrics=metrics)
    stream = engine.generate(request())
    fake.steps.put([("r", Progress("a", 1, times=EngineTimes(1.0, 1.5, 2.0, 2.0)))])
    await anext(stream)
    await stream.aclose()
    assert [(family, value) for family, _, value in recorder.drain().observations] == [(ENGINE_QUEUE, 0.5)]
    fake.steps.put([])
    await engine.shutdown()


async def test_reports_arrive_in_order_from_one_thread(engine, fake):
    stream = await start(engine, fake)
    fake.steps.put([("r", Progress("b", 1, 2, "stop"))])
    assert [progress async for progress in stream] == [Progress("b", 1, 2, "stop")]
    assert fake.threads == {"llm-engine"}


async def test_reports_that_wait_are_joined(engine, fake):
    stream = await start(engine, fake)
    for text in "bcd":
        fake.steps.put([("r", Progress(text, 1, 2))])
    fake.steps.put([("r", Progress("e", 1, 2, "stop"))])
    await wait_until(lambda: not fake.running)
    await asyncio.sleep(0)
    assert "".join([progress.text async for progress in stream]) == "bcde"


async def test_several_requests_share_a_step(engine, fake):
    first = asyncio.ensure_future(anext(engine.generate(request("a"))))
    second = asyncio.ensure_future(anext(engine.generate(request("b"))))
    await step_until(fake, lambda: len(fake.added) == 2)
    fake.steps.put([("a", Progress("A", finish_reason="stop")), ("b", Progress("B", finish_reason="stop"))])
    assert [(await first).text, (await second).text] == ["A", "B"]


async def test_a_refused_request_fails_alone(engine, fake):
    with pytest.raises(InvalidInputError, match="refused: max_tokens") as caught:
        await anext(engine.generate(request(max_tokens=0)))
    assert not caught.value.retryable
    stream = await start(engine, fake)
    await stream.aclose()


async def test_a_request_that_breaks_the_adding_fails_alone(engine, fake, caplog):
    with pytest.raises(InferenceError, match="could not accept the request: not a number"):
        await anext(engine.generate(request("broken", max_tokens=-1)))
    assert "not a number" in caplog.text
    assert fake.aborted == ["broken"]  # whatever of it is there already
    stream = await start(engine, fake)
    await stream.aclose()


async def test_a_failed_request_fails_alone(engine, fake):
    bad, good = await start(engine, fake, "bad"), engine.generate(request("good"))
    waiting = asyncio.ensure_future(anext(good))
    await step_until(fake, lambda: "good" in fake.added)
    fake.steps.put([("bad", InferenceError("broken")), ("good", Progress("x", finish_reason="stop"))])
    with pytest.raises(InferenceError, match="broken"):
        await anext(bad)
    assert (await waiting).text == "x"


async def test_abort_while_running(engine, fake):
    stream = await start(engine, fake)
    await engine.abort("r")
    fake.steps.put([])  # abort takes effect after the step that runs
    assert [progress.finish_reason async for progress in stream] == ["abort"]
    assert fake.aborted == ["r"]


async def test_abort_of_unknown_requests_does_nothing(engine, fake):
    await engine.abort("never")
    stream = await start(engine, fake)
    await stream.aclose()
    await step_until(fake, lambda: fake.aborted == ["r"])


async def test_closing_early_aborts(engine, fake):
    stream = await start(engine, fake)
    await stream.aclose()
    await step_until(fake, lambda: fake.aborted == ["r"])


async def test_death_fails_running_and_later_requests(fake, caplog):
    engine = InProcessEngine(lambda: fake, stall_timeout_s=5)
    stream = await start(engine, fake)
    fake.steps.put(RuntimeError("out of memory"))
    with pytest.raises(ModelUnavailableError, match="out of memory"):
        await anext(stream)
    with pytest.raises(ModelUnavailableError):
        await anext(engine.generate(request("later")))
    await engine.abort("later")  # not an error
    assert "the engine has died" in caplog.text
    await engine.shutdown()
    assert fake.closed.is_set()


async def test_death_is_reported_after_the_errors_of_requests_and_before_the_engine_is_freed(fake):
    reports = queue.SimpleQueue()
    engine = InProcessEngine(
        lambda: fake, stall_timeout_s=5, died=lambda reason: reports.put((reason, fake.closed.is_set()))
    )
    stream = await start(engine, fake)
    fake.steps.put(RuntimeError("out of memory"))
    assert await asyncio.to_thread(reports.get, timeout=5) == ("the engine has died: out of memory", False)
    with pytest.raises(ModelUnavailableError):
        await anext(stream)
    await engine.shutdown()
    assert reports.empty()


async def test_an_engine_that_does_not_come_to_the_end_of_a_step_is_dead(fake):
    reports = queue.SimpleQueue()
    engine = InProcessEngine(lambda: fake, stall_timeout_s=0.05, died=reports.put)
    with pytest.raises(DeadlineExceededError):
        await anext(engine.generate(request()))
    assert await asyncio.to_thread(reports.get, timeout=5) == (
        "the engine made no progress for 0.05 s, with no request at all"
    )
    fake.steps.put([])
    await engine.shutdown()


async def test_the_end_of_an_engine_is_no_death(fake):
    reports = queue.SimpleQueue()
    engine = InProcessEngine(lambda: fake, stall_timeout_s=5, died=reports.put)
    await engine.shutdown()
    assert reports.empty()


async def test_after_death_every_request_gets_an_error_of_its_own(fake):
    # An error that is raised again and again keeps the frames of everybody whom it was raised for.
    engine = InProcessEngine(lambda: fake, stall_timeout_s=5)
    running = [engine.generate(request(name)) for name in "ab"]
    waiting = [asyncio.ensure_future(anext(stream)) for stream in running]
    await step_until(fake, lambda: len(fake.added) == 2)
    fake.steps.put(RuntimeError("out of memory"))
    errors = await asyncio.gather(*waiting, return_exceptions=True)
    for stream in [engine.generate(request("later")) for _ in range(3)]:
        with pytest.raises(ModelUnavailableError, match="out of memory") as caught:
            await anext(stream)
        errors.append(caught.value)
    assert len({id(error) for error in errors}) == len(errors)


async def test_death_fails_requests_that_were_not_added_yet(fake):
    engine = InProcessEngine(lambda: fake, stall_timeout_s=5)
    await start(engine, fake)
    waiting = [asyncio.ensure_future(anext(engine.generate(request(str(n))))) for n in range(5)]
    await asyncio.sleep(0)  # the engine is inside a step: they wait in its queue
    fake.steps.put(RuntimeError("dead"))
    for outcome in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(outcome, ModelUnavailableError)


async def test_shutdown_fails_what_is_running(fake):
    engine = InProcessEngine(lambda: fake, stall_timeout_s=5)
    stream = await start(engine, fake)
    stop = asyncio.ensure_future(engine.shutdown())
    await asyncio.sleep(0)
    fake.steps.put([])
    with pytest.raises(ShuttingDownError):
        await anext(stream)
    await stop
    assert fake.closed.is_set()
    with pytest.raises(ShuttingDownError):
        await anext(engine.generate(request()))


async def test_an_engine_that_stalls_fails_the_request(fake):
    engine = InProcessEngine(lambda: fake, stall_timeout_s=0.05)
    with pytest.raises(DeadlineExceededError, match="no progress"):
        await anext(engine.generate(request()))
    await step_until(fake, lambda: fake.aborted == ["r"])
    await engine.shutdown()


def test_errors_of_the_start_are_passed_on():
    def create():
        raise ModelLoadingError("no weights")

    with pytest.raises(ModelLoadingError, match="no weights"):
        InProcessEngine(create)


def test_a_start_that_takes_too_long(fake):
    release = threading.Event()

    def create():
        release.wait(10)
        return fake

    with pytest.raises(DeadlineExceededError):
        InProcessEngine(create, start_timeout_s=0.01)
    release.set()
    assert fake.closed.wait(5), "an engine whose caller has gone goes on"
