"""What the models of one server answered last: asked in the background, by one task, and kept.

Nothing that a client sends makes a canary run. A server is asked when it becomes reachable, then at the
interval of the settings, and sooner while a model fails.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

from parley.canaries.asking import CanaryResult
from parley.errors import ParleyError
from parley.timeouts import is_set_within, loop_time
from parley_client.transport import MODEL

_log = logging.getLogger("parley.gateway")
# A busy server may be late once, as with health checks.
_TWICE = 2


AskModels: TypeAlias = Callable[[str, float], Sequence[CanaryResult]]
"""Takes ``host:port`` of gRPC and a deadline for each model (seconds); returns the results of every model
that the server is configured to serve. Blocks; raises :class:`ParleyError` if the server does not answer."""


class ModelHealth:
    """What the models of one server answered last.

    Args:
        address: ``host:port`` of gRPC.
        required: models that have to answer, whether or not the server names them.
        interval_s: between two reports (seconds).
        retry_s: the same while a model fails (seconds).
        deadline_s: for each model (seconds).
        ask: asks all models; runs in a thread.
    """

    def __init__(
        self,
        address: str,
        *,
        required: Sequence[str] = (),
        interval_s: float,
        retry_s: float,
        deadline_s: float,
        ask: AskModels,
    ) -> None:
        self._address = address
        self._required = required
        self._interval_s = interval_s
        self._retry_s = min(retry_s, interval_s)
        self._deadline_s = deadline_s
        self._ask = ask
        self._reachable, self._lost = asyncio.Event(), asyncio.Event()
        self._results: dict[str, CanaryResult] = {}
        self._seen: set[str] = set()
        self._problem = "not asked yet"
        self._asked_at = -math.inf
        self._agent_failures = 0  # in a row

    def set_reachable(self, *, is_reachable: bool) -> None:
        """A server that is not reachable is not asked; one that has just become so is asked at once."""
        if is_reachable:
            self._reachable.set()
            self._lost.clear()
        elif self._reachable.is_set():
            self._reachable.clear()
            self._lost.set()
            self._results, self._seen = {}, set()
            self._problem = "the server does not answer"
            self._asked_at, self._agent_failures = -math.inf, 0

    @property
    def results(self) -> Sequence[CanaryResult]:
        """What every model answered; empty if the server was not asked, or did not answer."""
        return tuple(self._results.values())

    @property
    def problem(self) -> str:
        """Why not all models answer, as far as known; empty: they do, and the report is not too old."""
        return self._problem or ("the last report is too old" if self._is_stale else "")

    @property
    def agent_problem(self) -> str:
        """Why the agent does not answer; empty if it does, was not asked, or did not only the last time."""
        if self._agent_failures < _TWICE:
            return ""
        return f"{MODEL}: {self._results[MODEL].detail}" if MODEL in self._results else ""

    async def watch(self) -> None:
        """Ask again and again, as long as the server is reachable; never returns."""
        # Not in the event loop's threads, which write recordings: servers that hang would fill them.
        thread = ThreadPoolExecutor(1, thread_name_prefix=f"models-{self._address}")
        try:
            while True:
                await self._reachable.wait()
                await self._refresh(thread)
                await is_set_within(self._lost, self._retry_s if self._problem else self._interval_s)
        finally:
            thread.shutdown(wait=False, cancel_futures=True)

    async def _refresh(self, thread: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        try:
            answered = await loop.run_in_executor(thread, self._ask, self._address, self._deadline_s)
        except ParleyError as error:
            self._record({}, str(error) or error.code)
        except Exception as error:  # noqa: BLE001 - logged with its trace
            # Whatever it was: without this task the report would never be renewed.
            _log.exception("the models of server %s could not be asked", self._address)
            self._record({}, f"the models could not be asked: {type(error).__name__}")
        else:
            results = {result.model: result for result in answered}
            # The launcher unloads a model that cannot be loaded again: the server no longer names it then.
            self._seen.update(results)
            for model in (*self._required, *sorted(self._seen)):
                if model not in results:
                    results[model] = CanaryResult(model, ok=False, duration_ms=0.0, detail="not loaded")
            failed = [model for model, result in results.items() if not result.ok]
            problem = f"{', '.join(failed)} failed" if failed else ""
            if not results:
                problem = "the server has no model"
            self._record(results, problem)

    def _record(self, results: dict[str, CanaryResult], problem: str) -> None:
        if not self._reachable.is_set():  # it was lost meanwhile
            return
        if problem != self._problem:
            details = "; ".join(f"{one.model}: {one.detail}" for one in results.values() if not one.ok)
            level = logging.WARNING if problem else logging.INFO
            _log.log(
                level, "models of server %s: %s", self._address, details or problem or "all of them answer"
            )
        self._results, self._problem = results, problem
        self._asked_at = loop_time()
        agent = results.get(MODEL)
        self._agent_failures = 0 if agent is None or agent.ok else self._agent_failures + 1

    @property
    def _is_stale(self) -> bool:
        age_s = loop_time() - self._asked_at
        return age_s > 2 * self._interval_s + 3 * self._deadline_s
