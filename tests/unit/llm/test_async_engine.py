"""When vLLM's engine core is dead."""

from __future__ import annotations

import asyncio

import pytest

from parley.errors import DeadlineExceededError
from parley.llm.engine import EngineRequest

async_llm = pytest.importorskip("parley.llm.async_llm", exc_type=ImportError)


class Core:
    """The part of ``AsyncLLM`` that is used; it says nothing."""

    class model_config:  # noqa: N801 - vLLM's name
        max_model_len = 100

    def __init__(self):
        self.errored = False

    @classmethod
    def from_engine_args(cls, _):
        return cls()

    async def generate(self, *_, **__):
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
async def make(monkeypatch):
    monkeypatch.setattr(async_llm, "AsyncLLM", Core)
    made = []

    def make(**options):
        engine = async_llm.AsyncEngine(None, Translation(), watch_s=0.001, **options)
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
