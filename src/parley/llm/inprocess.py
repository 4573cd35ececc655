"""vLLM's engine in this process, driven by one thread.

vLLM's own asynchronous engine always starts a child process for the engine core, and more of
them on a CPU. For a small model on a few cores that costs more than the model itself.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from parley.errors import (
    DeadlineExceededError,
    InferenceError,
    InvalidInputError,
    ModelUnavailableError,
    ParleyError,
    ShuttingDownError,
)
from parley.llm.engine import PrioritizedRequest, Progress, RequestT_contra, Translation
from parley.llm.engine_metrics import EngineMetrics
from parley.llm.step_threads import StepThreads
from parley.logs import log_ids

_log = logging.getLogger(__name__)


Report: TypeAlias = Progress | ParleyError
RequestT = TypeVar("RequestT", bound=PrioritizedRequest)


class SteppedEngine(Protocol[RequestT_contra]):
    """The part of vLLM's ``LLMEngine`` that is used, in the project's types."""

    def add(self, request: RequestT_contra) -> None:
        """Queue a request; raises ``ValueError`` if it cannot be run."""
        ...

    def abort(self, request_id: str) -> None:
        """Forget a request; unknown ids are not an error."""
        ...

    def busy(self) -> bool:
        """Whether there is anything to do."""
        ...

    def step(self) -> list[tuple[str, Report]]:
        """Advance all running requests by one step; an error ends its request."""
        ...

    def close(self) -> None:
        """Free the engine."""
        ...


class _Mailbox:
    """Where the engine thread leaves a request's reports for the event loop.

    Reports that wait are joined, so it never holds more than one report and one error.
    """

    def __init__(self) -> None:
        self._report: Report | None = None
        self._filled = asyncio.Event()

    def put(self, report: Report) -> None:
        waiting = self._report
        if isinstance(waiting, Progress) and isinstance(report, Progress):
            report = waiting + report
        if not isinstance(waiting, ParleyError):
            self._report = report
        self._filled.set()

    async def get(self) -> Progress:
        await self._filled.wait()
        self._filled.clear()
        report, self._report = self._report, None
        if isinstance(report, ParleyError):
            raise report
        assert report is not None
        return report


_Command: TypeAlias = Callable[[SteppedEngine[RequestT]], None]


class InProcessEngine(Generic[RequestT]):
    """:class:`parley.llm.engine.Engine` over an engine that is stepped by hand.

    Args:
        create: makes the engine; runs in the engine's thread.
        start_timeout_s: seconds that ``create`` may take.
        stall_timeout_s: seconds without progress after which a request fails.
        died: called with the reason when the engine can never answer again: it has failed, or has not
            come to the end of a step when a request fails for want of progress. Called when what ran has
            its error, from any thread.
        metrics: get the times of requests, if the engine measures any.

    Raises:
        DeadlineExceededError: ``create`` took too long. Its own errors are passed on.
    """

    def __init__(
        self,
        create: Callable[[], SteppedEngine[RequestT]],
        *,
        start_timeout_s: float = 600.0,
        stall_timeout_s: float = 120.0,
        died: Callable[[str], None] = lambda _: None,
        metrics: EngineMetrics | None = None,
    ) -> None:
        self._metrics = metrics
        self._stall_timeout_s = stall_timeout_s
        self._died = died
        self._stepped_at = time.monotonic()
        self._commands: queue.SimpleQueue[_Command[RequestT] | None] = queue.SimpleQueue()
        # Changed by the engine's thread alone.
        self._mailboxes: dict[str, tuple[asyncio.AbstractEventLoop, _Mailbox]] = {}
        self._lock = threading.Lock()
        # Makes the error of every request from then on; guarded by the lock, with the queue's last entry.
        self._ended: Callable[[], ParleyError] | None = None
        started: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(create, started), name="llm-engine", daemon=True
        )
        self._thread.start()
        try:
            started.result(start_timeout_s)
        except TimeoutError as error:
            self._commands.put(None)  # should it start after all, it ends at once
            raise DeadlineExceededError(f"the engine did not start within {start_timeout_s:g} s") from error

    @property
    def busy(self) -> bool:
        """Whether it has requests; may be read from any thread."""
        return bool(self._mailboxes)

    async def generate(self, request: RequestT) -> AsyncGenerator[Progress, None]:
        """Report progress until it has a finish reason."""
        loop = asyncio.get_running_loop()
        mailbox = _Mailbox()

        def add(engine: SteppedEngine[RequestT]) -> None:
            self._mailboxes[request.request_id] = loop, mailbox
            try:
                engine.add(request)
            except ValueError as error:
                self._report([(request.request_id, InvalidInputError(f"the engine refused: {error}"))])
            except Exception as error:  # noqa: BLE001 - logged, and the answer to this request alone
                with log_ids(request=request.request_id):
                    _log.exception("request %s could not be added", request.request_id)
                engine.abort(request.request_id)
                failure = InferenceError(f"the engine could not accept the request: {error}")
                self._report([(request.request_id, failure)])

        self._submit(add)
        finished, times = False, None
        try:
            while not finished:
                try:
                    async with asyncio.timeout(self._stall_timeout_s):
                        progress = await mailbox.get()
                except TimeoutError as error:
                    failure = f"the engine made no progress for {self._stall_timeout_s:g} s"
                    if time.monotonic() - self._stepped_at >= self._stall_timeout_s:
                        self._died(f"{failure}, with no request at all")
                    raise DeadlineExceededError(failure) from error
                except ParleyError:
                    finished = True
                    raise
                finished, times = progress.finish_reason is not None, progress.times or times
                yield progress
        finally:
            if self._metrics is not None and times is not None:
                self._metrics.on_ended(times)
            if not finished:
                await self.abort(request.request_id)

    async def abort(self, request_id: str) -> None:
        """End a request within one step; unknown ids are not an error."""

        def abort(engine: SteppedEngine[RequestT]) -> None:
            if request_id in self._mailboxes:
                engine.abort(request_id)
                self._report([(request_id, Progress(finish_reason="abort"))])

        try:
            self._submit(abort)
        except ParleyError:
            return  # an engine that has ended runs nothing

    async def shutdown(self) -> None:
        """Fail what is running and free the engine."""
        self._commands.put(None)
        await asyncio.to_thread(self._thread.join, 10.0)
        if self._thread.is_alive():
            _log.error("the engine did not stop within 10 s")

    def _submit(self, command: _Command[RequestT]) -> None:
        with self._lock:
            if self._ended is not None:
                raise self._ended()
            self._commands.put(command)

    def _run(self, create: Callable[[], SteppedEngine[RequestT]], started: Future[None]) -> None:
        try:
            engine = create()
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits for the start
            started.set_exception(error)
            return
        started.set_result(None)
        end: Callable[[], ParleyError] = partial(ShuttingDownError, "the model is being unloaded")
        try:
            while self._run_commands(engine):
                self._report(engine.step())
                self._stepped_at = time.monotonic()
        except Exception as error:  # noqa: BLE001 - becomes the answer to every request
            _log.exception("the engine has died; every request fails until the model is loaded again")
            reason = f"the engine has died: {error}"
            end = partial(ModelUnavailableError, reason)
            self._end(engine, end, reason)
        else:
            self._end(engine, end)

    def _run_commands(self, engine: SteppedEngine[RequestT]) -> bool:
        """Run the commands that wait, or wait for one if there is nothing to do; False: stop."""
        while True:
            try:
                command = self._commands.get(block=not engine.busy())
            except queue.Empty:
                return True
            if command is None:
                return False
            command(engine)

    def _report(self, reports: list[tuple[str, Report]]) -> None:
        deliveries: dict[asyncio.AbstractEventLoop, list[tuple[_Mailbox, Report]]] = {}
        for request_id, report in reports:
            entry = self._mailboxes.get(request_id)
            if entry is None:
                continue
            if isinstance(report, ParleyError) or report.finish_reason is not None:
                del self._mailboxes[request_id]
            loop, mailbox = entry
            deliveries.setdefault(loop, []).append((mailbox, report))
        # One wake-up per step, not one per request.
        for loop, delivery in deliveries.items():
            try:
                loop.call_soon_threadsafe(_deliver, delivery)
            except RuntimeError:
                _log.warning("%d reports came after their event loop was closed", len(delivery))

    def _end(self, engine: SteppedEngine[RequestT], end: Callable[[], ParleyError], death: str = "") -> None:
        with self._lock:
            self._ended = end
        # Requests that were submitted but not added: give them a mailbox, so that they fail too.
        while not self._commands.empty():
            command = self._commands.get()
            if command is not None:
                command(_Ended())
        self._report([(request_id, end()) for request_id in tuple(self._mailboxes)])
        if death:  # first: an engine that is broken may never close
            self._died(death)
        try:
            engine.close()
        except Exception:  # noqa: BLE001 - the process is about to end
            _log.exception("the engine could not be freed")


class _Ended:
    """Stands in for an engine that has ended."""

    def add(self, request: PrioritizedRequest) -> None:
        """Accept a request that fails at once."""

    def abort(self, request_id: str) -> None:
        """Do nothing: no request runs."""

    def busy(self) -> bool:
        return False

    def step(self) -> list[tuple[str, Report]]:
        return []

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


def _deliver(delivery: list[tuple[_Mailbox, Report]]) -> None:
    for mailbox, report in delivery:
        mailbox.put(report)


class VllmEngine(Generic[RequestT]):
    """:class:`SteppedEngine` over vLLM's ``LLMEngine``; ``metrics`` get its figures, if it measures any."""

    def __init__(
        self, engine_args: Any, translation: Translation[RequestT], metrics: EngineMetrics | None = None
    ) -> None:
        # Importing vLLM takes seconds and needs a prepared environment.
        from torch import get_num_threads  # noqa: PLC0415
        from torch._C import set_num_threads  # noqa: PLC0415 - vLLM replaces torch's own name of it

        from parley.llm.vllm_api import LLMEngine  # noqa: PLC0415
        from parley.llm.vllm_stats import make_stat_logger  # noqa: PLC0415
        from parley.llm.vllm_types import REFUSALS, trace_headers  # noqa: PLC0415

        self._refusals = REFUSALS
        self._trace_headers = partial(trace_headers, engine_args)
        self._translation = translation
        loggers = [make_stat_logger(metrics)] if metrics else None
        self._engine = LLMEngine.from_engine_args(engine_args, stat_loggers=loggers)
        self.max_model_len: int = self._engine.model_config.max_model_len
        self._threads = StepThreads(get_num_threads())
        self._set_threads: Callable[[int], None] = set_num_threads

    def add(self, request: RequestT) -> None:
        """Queue a request; raises ``ValueError`` if vLLM will never run it."""
        prompt, sampling = self._translation.prompt(request), self._translation.sampling(request)
        if not self.busy():
            self._threads.choose()
        try:
            self._engine.add_request(
                request.request_id,
                prompt,
                sampling,
                trace_headers=self._trace_headers(request.traceparent),
                priority=request.priority,
            )
        except self._refusals as error:
            raise ValueError(str(error)) from error

    def abort(self, request_id: str) -> None:
        """Forget a request."""
        self._engine.abort_request([request_id])

    def busy(self) -> bool:
        """Whether there is anything to do."""
        return bool(self._engine.has_unfinished_requests())

    def step(self) -> list[tuple[str, Report]]:
        """Advance all running requests by one step."""
        self._set_threads(self._threads.count)
        outputs = self._engine.step()
        # Before the reports: what they wake up runs for less than a millisecond.
        self._threads.choose()
        return [(output.request_id, self._read(output)) for output in outputs]

    def close(self) -> None:
        """Free the engine."""
        self._engine.engine_core.shutdown()

    def _read(self, output: Any) -> Report:
        try:
            return self._translation.read(output)
        except ParleyError as error:
            return error
