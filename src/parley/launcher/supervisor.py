"""Watching a running server, and replacing what fails.

A model's process that ends, is stopped, or does not answer its canary is replaced by loading that model alone
again; of a model whose instances are groups of their own, only the failed instance. A model that fails too
often within a window, and a server that ends, does not answer, or whose clock is set back, cost a new server.
A server that fails too often is given up.

What Triton 24.10 does of itself: a request to a dead process gets an error after a second, one after the
other; the responses of a decoupled request that was under way never come, and its caller waits for its own
deadline. A model that is loaded again replaces the dead one when it is ready; what stays of that is in
:mod:`parley.launcher.replacement`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from parley.canaries.connection import CanaryAddress, ChannelPool
from parley.canaries.models import CanaryCall
from parley.launcher.errors import LauncherError, RestartLimitError, StartInterruptedError
from parley.launcher.liveness import (
    CanaryOutcome,
    HeartbeatWatch,
    Liveness,
    WallClock,
    ask_canary,
    read_counts,
)
from parley.launcher.models import renew_instances, renew_model
from parley.launcher.processes import Stub, child_state, find_stubs, kill_process
from parley.launcher.reloading import LoadOutcome, SupervisedServer, load_again
from parley.launcher.replacement import Replacement
from parley.launcher.restarts import (
    DEAD_INSTANCES,
    DIED,
    NOT_RESTORED,
    PROCESS_REASONS,
    SERVER_REASONS,
    SET_BACK,
    STOPPED,
    UNRESPONSIVE,
    Failure,
    RestartRecords,
    SupervisorLimits,
)
from parley.runtime.attempts import Attempts
from parley.triton.model_control import CONTROL_MODEL, loss_path

_STOPPED = "T"  # not "t": a debugger holds that one
_JOIN_S = 10.0
_SHOW_AGAIN_S = 30.0
"""Until numbers that could not be written on the metrics page are written again."""
_log = logging.getLogger(__name__)
T = TypeVar("T")


class _EndedError(Exception):
    """The server ended with status 0, on a signal."""


class _ServerNeededError(Exception):
    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.detail)
        self.failure = failure


@dataclass
class _Process:
    """A watched process of a model."""

    stub: Stub
    heartbeat: HeartbeatWatch
    stopped_since: float | None = None
    killed: Failure | None = None
    """Why the supervisor killed it."""


@dataclass
class _Model:
    name: str
    config: Any
    attempts: Attempts
    liveness: Liveness
    processes: dict[int, _Process] = field(default_factory=dict)
    """The watched processes by number."""
    retired: set[int] = field(default_factory=set)
    """Processes that Triton ends, because others have replaced them."""
    failed: dict[str, Failure] = field(default_factory=dict)
    """Instances that are still to be replaced."""
    due: float = 0.0
    busy: bool = False
    """Whether it is being loaded."""

    @property
    def is_settled(self) -> bool:
        """Whether it is neither being replaced, nor to be replaced."""
        return not (self.busy or self.failed)


class Supervisor:
    """Watches one server from a thread of its own.

    Args:
        canaries: by model; a model without one is watched by its processes alone.
        record: JSON file with all restarts; rewritten at every change.
        report: receives one line for people at every event.
        load_s: seconds that a model may take to load.
        called: by model, those on which its canary may wait.
        counts: reads from the server what its models have completed.
        clock: notices that the wall clock was set back.
    """

    def __init__(
        self,
        server: SupervisedServer,
        canaries: Mapping[str, CanaryCall],
        *,
        limits: SupervisorLimits,
        record: Path,
        report: Callable[[str], None],
        load_s: float,
        called: Callable[[str], Collection[str]],
        counts: Callable[[CanaryAddress], Mapping[str, tuple[int, ...]]] = read_counts,
        clock: WallClock | None = None,
    ) -> None:
        self._server = server
        self._canaries = canaries
        self._limits = limits
        self._report = report
        self._load_s = load_s
        self._callees = called
        self._attempts = limits.attempts(limits.server_attempts)
        self._replacement = Replacement(limits, report)
        self._models: dict[str, _Model] = {}
        self._records = RestartRecords(record)
        self._results: queue.SimpleQueue[tuple[int, Callable[[float], None]]] = queue.SimpleQueue()
        self._generation = 0
        self._read_counts = counts
        self._channels = ChannelPool(server.own_address)
        self._wall_clock = clock or WallClock()
        self._silences = 0
        self._stopped_since: float | None = None
        self._next_counts = 0.0
        self._counting = False
        self._shown: tuple[Mapping[str, Mapping[str, int]], int] | None = None
        """What is on the metrics page, or being written; None: what is there is not up to date."""
        self._showing = False
        self._next_show = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)
        self.ended = False
        """The server has ended with status 0, as on a SIGTERM of its own: nothing is watched any more."""
        self.failure: LauncherError | None = None
        """Why the server was given up."""

    def start(self) -> None:
        """Begin to watch."""
        self._watch_server()
        self._records.write()
        self._thread.start()

    def stop(self) -> None:
        """Stop watching. Safe to call twice."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)
        self._channels.close()
        if self.failure is None:
            self._records.server.state = "stopped"
            self._records.write()

    def restarts(self) -> dict[str, dict[str, int]]:
        """By model, and under an empty name for the server: restarts by reason."""
        return self._records.counts()

    # --- the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.wait(self._limits.look_s) and self.failure is None:
            try:
                self._check()
            except StartInterruptedError:
                return
            except _EndedError:
                self.ended = True
                return
            except Exception as error:  # noqa: BLE001 - it must go on watching
                _log.exception("a look at the server failed")
                self._report(f"the supervisor goes on after an error of its own: {error!r}")

    def _check(self) -> None:
        now = time.monotonic()
        self._records.write_missing()
        try:
            regions = self._server.protect_memory()
            self._check_server(now)
            self._handle_results(now)
            for model in self._models.values():
                self._check_processes(model, now)
            for model in self._models.values():
                self._replace_if_due(model, now)
            self._count_dead_instances(regions)
            self._replace_working_server(now)
            self._start_show(now)
            self._start_count(now)
        except _ServerNeededError as error:
            self._restart_server(error.failure)

    def _start(self, work: Callable[[], T], then: Callable[[T | Exception, float], None]) -> None:
        """Do slow work in a thread of its own; the supervisor gets its result or error, and the time."""
        generation = self._generation

        def run() -> None:
            result: T | Exception
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - the supervisor waits for the result
                result = error
            self._results.put((generation, lambda now: then(result, now)))

        threading.Thread(target=run, name="supervisor's work", daemon=True).start()

    def _handle_results(self, now: float) -> None:
        while True:
            try:
                generation, handle = self._results.get_nowait()
            except queue.Empty:
                return
            if generation == self._generation:
                handle(now)

    # --- processes --------------------------------------------------------------------------

    def _watch_processes(self, model: _Model) -> None:
        for stub in find_stubs(self._server.pid):
            if stub.model == model.name and stub.pid not in model.retired | model.processes.keys():
                heartbeat = HeartbeatWatch(self._server.folder, stub.pid, self._limits)
                model.processes[stub.pid] = _Process(stub, heartbeat)

    def _check_processes(self, model: _Model, now: float) -> None:
        if model.busy:  # there are new ones
            self._watch_processes(model)
        for pid, process in list(model.processes.items()):
            instance = process.stub.instance
            state = child_state(pid, self._server.pid)
            if not state:
                self._on_process_ended(model, process, now)
            elif state == _STOPPED:
                process.stopped_since = process.stopped_since or now
                if now - process.stopped_since >= self._limits.model_stopped_s:
                    self._kill(process, Failure(STOPPED, f"process {pid} of {instance} was stopped"))
            else:
                process.stopped_since = None
                if process.killed is None and process.heartbeat.is_silent(now):
                    what = f"the event loop of process {pid} of {instance} stands still"
                    self._kill(process, Failure(UNRESPONSIVE, what))

    def _kill(self, process: _Process, failure: Failure) -> None:
        process.killed = process.killed or failure
        kill_process(process.stub.pid)

    def _on_process_ended(self, model: _Model, process: _Process, now: float) -> None:
        if self._server.poll() is not None:  # which takes its processes with it
            return
        stub = process.stub
        failure = process.killed or Failure(DIED, f"process {stub.pid} of {stub.instance} died")
        del model.processes[stub.pid]
        if not model.processes:
            # Triton ends none of the streams that were under way: their callers look at this file. Without
            # room for it, they wait for their deadlines.
            with contextlib.suppress(OSError):
                loss_path(self._server.folder, model.name).touch(mode=0o600)
        if model.name == CONTROL_MODEL:
            left = "one more can" if model.processes else "none can any more"
            self._report(f"{failure.detail}; of the processes that load models, {left}")
            return
        model.failed[stub.instance] = failure
        self._schedule(model, now)
        self._report(f"{failure.detail}: {model.name} is loaded again")

    @property
    def holds_dead_instances(self) -> bool:
        """Whether the server has, or may have, instances whose process has ended."""
        return self._replacement.dead_instances > 0 or not all(
            model.is_settled for model in self._models.values()
        )

    def _count_dead_instances(self, regions: int) -> None:
        """Count the regions without a process."""
        models = self._models.values()
        if any(not model.is_settled for model in models):  # a new process is found after its region
            return
        living = sum(len(model.processes) for model in models)
        if not living:  # the server runs behind another program: its processes are not known
            return
        living += sum(bool(child_state(pid, self._server.pid)) for model in models for pid in model.retired)
        self._replacement.dead_instances = max(0, regions - living)

    # --- replacing models -------------------------------------------------------------------

    def _schedule(self, model: _Model, now: float) -> None:
        due = model.attempts.next_at(now)
        if due is None:
            detail = next(iter(model.failed.values())).detail
            if attempts := self._limits.model_attempts:
                detail = (
                    f"{model.name} was loaded again {attempts} times in {self._limits.window_s:g} s, "
                    f"and failed again ({detail})"
                )
            raise _ServerNeededError(Failure(NOT_RESTORED, detail))
        model.due = due

    def _replace_if_due(self, model: _Model, now: float) -> None:
        if not model.failed or model.busy or now < model.due:
            return
        failed = dict(model.failed)
        model.failed.clear()
        model.busy = True
        model.attempts.add(now)
        record = self._records.models[model.name]
        record.on_failure(next(iter(failed.values())))
        self._records.write()
        config = type(model.config)()
        config.CopyFrom(model.config)
        alone = renew_instances(config, failed)
        if not alone:
            renew_model(config, sum(record.restarts.values()))
            model.retired.update(model.processes)
            model.processes.clear()
        work = partial(
            load_again,
            self._server,
            config,
            self._canaries.get(model.name),
            dead=len(failed) if alone else 0,
            load_s=self._load_s,
            canary_s=self._limits.reload_canary_s,
            stopping=self._stopping,
        )
        self._start(work, partial(self._on_loaded, model, failed, config))

    def _on_loaded(
        self,
        model: _Model,
        failed: Mapping[str, Failure],
        config: Any,
        outcome: LoadOutcome | Exception,
        now: float,
    ) -> None:
        if isinstance(outcome, Exception):
            outcome = LoadOutcome(f"{model.name} was not loaded: {outcome!r}", is_loaded=False)
        model.busy = False
        model.config = config
        model.liveness.mark_alive(now)
        self._watch_processes(model)
        record = self._records.models[model.name]
        # A failure of one that it calls may be why it does not answer; its canary comes again later.
        if not outcome.error or (outcome.is_loaded and self._may_lack_others(model.name)):
            took_s = record.on_restored()
            number = sum(record.restarts.values())
            self._report(f"{model.name} answers again after {took_s:.1f} s (restart {number})")
            self._records.write()
            return
        self._report(outcome.error)
        if outcome.is_hopeless:
            raise _ServerNeededError(Failure(NOT_RESTORED, outcome.error))
        # Whatever does not answer now is replaced with the next attempt.
        for instance, failure in failed.items():
            model.failed.setdefault(instance, failure)
        self._schedule(model, now)

    # --- canaries ---------------------------------------------------------------------------

    def _start_count(self, now: float) -> None:
        """Read at intervals what the models have completed."""
        if not self._counting and now >= self._next_counts:
            self._next_counts = now + self._limits.quiet_s / 4
            self._counting = True
            self._start(partial(self._read_counts, self._channels), self._on_counts)

    def _on_counts(self, counts: Mapping[str, tuple[int, ...]] | Exception, now: float) -> None:
        self._counting = False
        if isinstance(counts, Exception):
            _log.warning("the counts of completed requests were not read: %s", counts)
            self._silences += 1
            return
        self._silences = 0
        for name, model in self._models.items():
            model.liveness.on_counts(counts.get(name, ()), now)
        quiet = {
            name
            for name, model in self._models.items()
            if name in self._canaries
            and model.liveness.is_quiet(now, self._limits.quiet_s)
            and self._is_settled(model)
        }
        # Whether one that it calls is at fault is to be known when a model is judged.
        for name in [name for name in quiet if self._models[name].liveness.misses]:
            quiet |= {other.name for other in self._loaded_callees(name) if not other.liveness.asking}
        for name in quiet:
            self._ask(self._models[name])

    def _ask(self, model: _Model) -> None:
        model.liveness.asking = True
        asked = (model, *self._loaded_callees(model.name))
        work = partial(
            ask_canary,
            self._canaries[model.name],
            self._channels,
            processes=[pid for each in asked for pid in each.processes],
            deadline_s=self._limits.canary_s,
            wait=self._stopping.wait,
        )
        self._start(work, partial(self._on_canary_result, model))

    def _loaded_callees(self, name: str) -> list[_Model]:
        return [
            self._models[other]
            for other in self._callees(name)
            if other in self._models and other in self._canaries
        ]

    def _is_settled(self, model: _Model) -> bool:
        """Whether neither a model nor one that it calls is being replaced, or to be replaced."""
        return all(each.is_settled for each in (model, *self._loaded_callees(model.name)))

    def _may_lack_others(self, name: str) -> bool:
        """Whether a model may be silent only because one that it calls fails."""
        return any(
            not model.is_settled or model.liveness.asking or model.liveness.misses
            for model in self._loaded_callees(name)
        )

    def _on_canary_result(self, model: _Model, outcome: CanaryOutcome | Exception, now: float) -> None:
        liveness = model.liveness
        liveness.asking, liveness.asked_at = False, now
        if isinstance(outcome, Exception):  # of the launcher, not of the model
            _log.warning("the canary of %s was not asked: %r", model.name, outcome)
        elif not outcome.error:
            liveness.mark_alive(now)
        elif outcome.began < liveness.alive_at:
            pass  # it works; a process that has been replaced since may not have answered
        elif not self._is_settled(model):
            pass  # one that it calls has failed meanwhile, or it has itself
        elif outcome.working and now - liveness.alive_at < self._limits.working_s:
            liveness.misses = 0
        elif liveness.misses == 0:
            liveness.misses = 1
            self._next_counts = now  # at once
            self._report(f"{model.name} failed its canary, which is repeated: {outcome.error}")
        elif not self._may_lack_others(model.name):
            liveness.misses = 0
            failure = Failure(UNRESPONSIVE, f"{model.name} failed its canary twice ({outcome.error})")
            for process in model.processes.values():
                self._kill(process, failure)

    # --- the metrics page -------------------------------------------------------------------

    def _start_show(self, now: float) -> None:
        """Write the numbers on the metrics page when they have changed, one after the other.

        Every counter is there from the start: one that first appears with a restart shows no increase.
        """
        restarts = {
            name: dict.fromkeys(PROCESS_REASONS if name else SERVER_REASONS, 0) | counts
            for name, counts in self._records.counts().items()
        }
        numbers = (restarts, self._replacement.dead_instances)
        if not self._showing and now >= self._next_show and numbers != self._shown:
            self._showing, self._shown = True, numbers
            self._start(partial(self._server.control.show, *numbers), self._on_shown)

    def _on_shown(self, error: Exception | None, now: float) -> None:
        self._showing = False
        if error is not None:
            _log.warning("restarts and dead instances are not on the metrics page yet: %s", error)
            self._shown, self._next_show = None, now + _SHOW_AGAIN_S

    # --- the server -------------------------------------------------------------------------

    def _check_server(self, now: float) -> None:
        if (status := self._server.poll()) == 0:
            raise _EndedError
        if status is not None:
            raise _ServerNeededError(Failure(DIED, f"tritonserver ended with status {status}"))
        if child_state(self._server.pid, os.getpid()) != _STOPPED:
            self._stopped_since = None
        else:
            self._stopped_since = self._stopped_since or now
            if now - self._stopped_since >= self._limits.stopped_s:
                detail = f"tritonserver was stopped for {self._limits.stopped_s:g} s"
                raise _ServerNeededError(Failure(STOPPED, detail))
        if self._silences >= self._limits.server_failures:
            detail = f"tritonserver did not answer {self._silences} times"
            raise _ServerNeededError(Failure(UNRESPONSIVE, detail))
        if (back_s := self._wall_clock.set_back_s()) > self._limits.set_back_s:
            self._replacement.on_set_back(back_s)

    def _replace_working_server(self, now: float) -> None:
        if failure := self._replacement.find(now, self._server.drain_file):
            raise _ServerNeededError(failure)

    def _watch_server(self) -> None:
        self._generation += 1
        self._counting = self._showing = False
        self._shown, self._next_show = None, 0.0
        self._silences, self._stopped_since = 0, None
        self._replacement.on_started()
        self._channels.close()
        self._channels = ChannelPool(self._server.own_address)
        now = time.monotonic()
        self._next_counts = now + self._limits.quiet_s / 4
        self._models = {
            name: _Model(
                name,
                self._server.model_config(name),
                self._limits.attempts(self._limits.model_attempts),
                Liveness(alive_at=now),
            )
            for name in (*self._server.models, CONTROL_MODEL)
        }
        for model in self._models.values():
            self._watch_processes(model)
        self._records.on_served(self._server.models)

    def _restart_server(self, failure: Failure) -> None:
        record = self._records.server
        record.on_failure(failure)
        error: LauncherError | OSError | None = None
        # Those of the server that ends: a stop while the next one starts must not count them.
        self._models, self._replacement.dead_instances = {}, 0
        is_planned = failure.reason in (SET_BACK, DEAD_INSTANCES)
        attempts = self._replacement.attempts if is_planned else self._attempts
        while True:
            now = time.monotonic()
            due = attempts.next_at(now)
            if due is None:
                record.state = "failed"
                self._records.write()
                self.failure = RestartLimitError(self._describe_end(failure, error))
                return
            if error is None:
                self._report(f"{failure.detail}: the server is started again")
            self._records.write()
            if self._stopping.wait(due - now):
                return
            attempts.add(time.monotonic())
            self._replacement.end_drain()
            try:
                self._server.restart()
                break
            except StartInterruptedError:
                raise
            except (LauncherError, OSError) as again:  # OSError: no memory, no room for the log
                error, attempts = again, self._attempts
                self._report(f"the server was not started: {again}")
        self._watch_server()
        self._report(f"the server answers again after {record.on_restored():.1f} s")
        self._records.write()

    def _describe_end(self, failure: Failure, error: LauncherError | OSError | None) -> str:
        attempts = self._limits.server_attempts
        again = f"; it was started again {attempts} times in {self._limits.window_s:g} s" if attempts else ""
        cause = f" {error}" if error else f" The log's last lines:\n{self._server.log_tail()}"
        return f"The server is given up: {failure.detail}{again}.{cause}"
