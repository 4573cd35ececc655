"""vLLM's asynchronous engine, whose core runs in a process of its own: the way on a GPU."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from typing import Any, Generic, TypeVar

from parley.errors import (
    DeadlineExceededError,
    InferenceError,
    InvalidInputError,
    ModelUnavailableError,
    ParleyError,
)
from parley.llm.engine import PrioritizedRequest, Progress, Translation
from parley.llm.engine_metrics import EngineMetrics
from parley.llm.vllm_api import AsyncLLM, EngineDeadError
from parley.llm.vllm_stats import make_stat_logger
from parley.llm.vllm_types import REFUSALS, trace_headers

RequestT = TypeVar("RequestT", bound=PrioritizedRequest)


class AsyncEngine(Generic[RequestT]):
    """:class:`parley.llm.engine.Engine` over ``AsyncLLM``.

    Args:
        stall_timeout_s: seconds without progress after which a request fails.
        died: called with the reason when the processes of the engine have ended, or when no request has made
            progress for that time.
        watch_s: interval of the checks whether they have ended.
        metrics: get the engine's figures, if it measures any.
    """

    def __init__(
        self,
        engine_args: Any,
        translation: Translation[RequestT],
        *,
        stall_timeout_s: float = 120.0,
        died: Callable[[str], None] = lambda _: None,
        watch_s: float = 0.5,
        metrics: EngineMetrics | None = None,
    ) -> None:
        # Loggers make vLLM measure, whatever its arguments say.
        measures = metrics is not None and not engine_args.disable_log_stats
        loggers = [make_stat_logger(metrics)] if metrics and measures else None
        self._metrics = metrics
        self._translation = translation
        self._trace_headers = partial(trace_headers, engine_args)
        self._engine = AsyncLLM.from_engine_args(engine_args, stat_loggers=loggers)
        self._stall_timeout_s = stall_timeout_s
        self._running: set[str] = set()
        # Aborts whose requests the engine may not have received yet.
        self._aborted: set[str] = set()
        self._died = died
        self._progressed_at = time.monotonic()
        # Requests notice it, but there may be none for hours.
        self._watch = asyncio.get_running_loop().create_task(self._watch_core(watch_s))
        self.max_model_len: int = self._engine.model_config.max_model_len

    @property
    def busy(self) -> bool:
        """Whether it has requests; may be read from any thread."""
        return bool(self._running)

    async def generate(self, request: RequestT) -> AsyncGenerator[Progress, None]:
        """Report progress until it has a finish reason."""
        request_id = request.request_id
        self._running.add(request_id)
        times = None
        try:
            async with aclosing(self._outputs(request)) as reports:
                async for progress in reports:
                    times = progress.times or times
                    if request_id in self._aborted:
                        yield Progress(finish_reason="abort", cached_tokens=progress.cached_tokens)
                        return
                    yield progress
        finally:
            if self._metrics is not None and times is not None:
                self._metrics.on_ended(times)
            self._running.discard(request_id)
            self._aborted.discard(request_id)

    async def abort(self, request_id: str) -> None:
        """End a request within one step; unknown ids are not an error."""
        if request_id in self._running:
            self._aborted.add(request_id)
            await self._engine.abort(request_id)

    async def shutdown(self) -> None:
        """Fail what is running and free the engine."""
        self._watch.cancel()
        await asyncio.to_thread(self._engine.shutdown, 3.0)

    async def _watch_core(self, interval_s: float) -> None:
        while not self._engine.errored:  # noqa: ASYNC110 - vLLM has no event for it
            await asyncio.sleep(interval_s)
        self._died("the engine has died")

    async def _outputs(self, request: RequestT) -> AsyncGenerator[Progress, None]:
        prompt, sampling = self._translation.prompt(request), self._translation.sampling(request)
        outputs = self._engine.generate(
            prompt,
            sampling,
            request.request_id,
            trace_headers=self._trace_headers(request.traceparent),
            priority=request.priority,
        )
        async with aclosing(outputs):  # closing it early also aborts the request
            while True:
                try:
                    async with asyncio.timeout(self._stall_timeout_s):
                        progress = self._translation.read(await anext(outputs))
                    self._progressed_at = time.monotonic()
                except StopAsyncIteration:
                    return
                except TimeoutError as error:
                    failure = f"the engine made no progress for {self._stall_timeout_s:g} s"
                    if time.monotonic() - self._progressed_at >= self._stall_timeout_s:
                        self._died(f"{failure}, with no request at all")
                    raise DeadlineExceededError(failure) from error
                except EngineDeadError as error:
                    raise ModelUnavailableError(f"the engine has died: {error}") from error
                except ParleyError:
                    raise
                except REFUSALS as error:
                    raise InvalidInputError(f"the engine refused: {error}") from error
                except Exception as error:
                    raise InferenceError(f"the engine failed: {error}") from error
                yield progress
