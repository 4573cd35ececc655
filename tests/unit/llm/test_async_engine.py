"""When vLLM's engine core is dead."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from recorded_spans import PARENT

from parley.errors import DeadlineExceededError
from parley.llm.engine import EngineRequest
from parley.llm.engine_metrics import ENGINE_FAMILIES, EngineMetrics
from parley.metrics import MetricsRecorder


@pytest.fixture(scope="module")
def async_llm():
    """Imports vLLM, which takes seconds: not in every process that collects tests."""
    return pytest.importorskip("parley.llm.async_llm", exc_type=ImportError)


class Core:
    """The part of ``AsyncLLM`` that is used; it says nothing."""

    class model_config:  # noqa: N801 - vLLM's name
        max_model_len = 100

    def __init__(self):
        self.errored = False

    @classmethod
    def from_engine_args(cls, _, *, stat_loggers):
        made = cls()
        made.stat_loggers = stat_loggers
        return made

    async def generate(self, *_, **options):
        self.asked = options
        await asyncio.Event().wait()
        yield

    def shutdown(self, _):
        self.errored = True


class Translation:
    def prompt(self, request):
        return request.prompt

    def sampling(self, request):
        return None

    def read(self, output):
        return output


@pytest.fixture
async def make(async_llm, monkeypatch):
    monkeypatch.setattr(async_llm, "AsyncLLM", Core)
    made = []

    def make(arguments=None, **options):
        engine = async_llm.AsyncEngine(arguments, Translation(), watch_s=0.001, **options)
        made.append(engine)
        return engine

    yield make
    for engine in made:
        await engine.shutdown()


async def test_death_is_noticed_without_a_request(make):
    reasons = asyncio.Queue()
    engine = make(died=reasons.put_nowait)
    await asyncio.sleep(0.01)
    assert reasons.empty()
    engine._engine.errored = True
    async with asyncio.timeout(5):
        assert await reasons.get() == "the engine has died"


async def test_an_engine_that_never_answers_is_dead(make):
    reasons = asyncio.Queue()
    engine = make(died=reasons.put_nowait, stall_timeout_s=0.02)
    with pytest.raises(DeadlineExceededError):
        await anext(engine.generate(EngineRequest("r", [1], 8)))
    assert reasons.get_nowait() == "the engine made no progress for 0.02 s, with no request at all"


async def test_an_engine_that_is_shut_down_is_not_reported(make):
    reasons = asyncio.Queue()
    engine = make(died=reasons.put_nowait)
    await engine.shutdown()
    await asyncio.sleep(0.01)
    assert reasons.empty()


@pytest.mark.parametrize(
    ("endpoint", "sent"), [(None, None), ("http://127.0.0.1:4318", {"traceparent": PARENT})]
)
async def test_vllm_gets_the_trace_only_if_it_traces_by_itself(make, endpoint, sent):
    engine = make(SimpleNamespace(otlp_traces_endpoint=endpoint))
    request = EngineRequest("a", [1], 1, traceparent=PARENT)
    running = asyncio.create_task(anext(engine.generate(request)))
    await asyncio.sleep(0.01)
    assert engine.busy
    assert engine._engine.asked["trace_headers"] == sent
    running.cancel()
    await asyncio.wait([running])
    assert not engine.busy


@pytest.mark.parametrize("disabled", [True, False])
async def test_vllm_measures_unless_its_arguments_say_no(make, disabled):
    metrics = EngineMetrics(MetricsRecorder(ENGINE_FAMILIES), "qwen3", "qwen3_0")
    engine = make(SimpleNamespace(disable_log_stats=disabled, otlp_traces_endpoint=None), metrics=metrics)
    assert (engine._engine.stat_loggers is None) is disabled
