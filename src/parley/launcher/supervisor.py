"""Watching a running server, and replacing what fails.

A model's process that ends, is stopped, or does not answer its canary is replaced by loading that model alone
again; of a model whose instances are groups of their own, only the failed instance. A model that fails too
often within a window, and a server that ends, does not answer, or whose clock is set back, cost a new server.
A server that fails too often is given up.

What Triton 24.10 does of itself: a request to a dead process gets an error after a second, one after the
other; the responses of a decoupled request that was under way never come, and its caller waits for its own
deadline. A model that is loaded again replaces the dead one when it is ready; what stays of that is in
:mod:`parley.launcher.leftovers`.
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
from pathlib import Path
from typing import Any

from parley.canaries import CanaryCall, ServerAddress
from parley.launcher.errors import LauncherError, RestartLimitError, StartInterruptedError
from parley.launcher.leftovers import DeadInstances
from parley.launcher.liveness import (
    CanaryOutcome,
    Heartbeats,
    Liveness,
    WallClock,
    ask_canary,
    read_counts,
)
from parley.launcher.models import renew_instances, renew_model
from parley.launcher.processes import Stub, child_state, find_stubs, kill_process
from parley.launcher.reloading import Failure, LoadDone, ModelReloader, SupervisedServer
from parley.launcher.restarts import (
    DEAD_INSTANCES,
    DIED,
    NOT_RESTORED,
    SET_BACK,
    STOPPED,
    UNRESPONSIVE,
    RestartRecord,
    SupervisorLimits,
    write_record,
)
from parley.runtime.attempts import Attempts
from parley.triton.model_control import CONTROL_MODEL, loss_path

_STOPPED = "T"  # not "t": a debugger holds that one
_JOIN_S = 10.0
_log = logging.getLogger(__name__)


class _EndedError(Exception):
    """The server ended with status 0, on a signal."""


class _ServerNeededError(Exception):
    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.failure = Failure(reason, detail)


@dataclass
class _Model:
    name: str
    config: Any
    attempts: Attempts
    liveness: Liveness
    stubs: dict[int, Stub] = field(default_factory=dict)
    """The watched processes by number."""
    retired: set[int] = field(default_factory=set)
    """Processes that Triton ends, because others have replaced them."""
    killed: dict[int, Failure] = field(default_factory=dict)
    """Reason by process."""
    failed: dict[str, Failure] = field(default_factory=dict)
    """Instances that are still to be replaced."""
    due: float = 0.0
    busy: bool = False
    """Whether it is being loaded."""
    restarts: int = 0
    stopped: dict[int, float] = field(default_factory=dict)
    """Since when each stopped process is stopped."""


@dataclass(frozen=True)
class _CountsRead:
    """Result of a thread that read what the models have completed."""

    generation: int
    counts: Mapping[str, tuple[int, ...]] | None
    """None: the server did not answer."""


@dataclass(frozen=True)
class _CanaryDone:
    """Result of a thread that called a model's canary."""

    generation: int
    outcome: CanaryOutcome
    began: float
    """Start of the call."""


class Supervisor:
    """Watches one server from a thread of its own.

    Args:
        server: a running server.
        canaries: by model; a model without one is watched by its processes alone.
        limits: when to act.
        record: JSON file with all restarts; rewritten at every change.
        report: receives one line for people at every event.
        load_s: seconds that a model may take to load.
        called: by model, those on which its canary may wait.
        counts: reads from the server's address what its models have completed.
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
        counts: Callable[[ServerAddress], Mapping[str, tuple[int, ...]]] = read_counts,
        clock: WallClock | None = None,
    ) -> None:
        self._server = server
        self._canaries = canaries
        self._limits = limits
        self._record_path = record
        self._record_missing = False
        self._report = report
        self._callees = called
        self._attempts = limits.attempts(limits.server_attempts)
        self._set_backs = limits.attempts(limits.set_back_attempts)
        self._set_back = ""
        """What is to be said of a clock that was set back; empty: it was not since the server was started."""
        self._models: dict[str, _Model] = {}
        self._server_record = RestartRecord()
        self._records: dict[str, RestartRecord] = {}
        self._results: queue.SimpleQueue[LoadDone | _CountsRead | _CanaryDone] = queue.SimpleQueue()
        self._generation = 0
        self._read_server_counts = counts
        self._wall_clock = clock or WallClock()
        self._heartbeats: Heartbeats
        self._silences = 0
        self._stopped_since: float | None = None
        self._next_counts = 0.0
        self._counting = False
        self._dead = DeadInstances(limits)
        self._stopping = threading.Event()
        self._reloader = ModelReloader(server, canaries, limits, load_s, self._stopping)
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)
        self.wrecks = 0
        """Dead instances that the running server still holds, and will hold until it is killed."""
        self.ended = False
        """The server has ended with status 0, as on a SIGTERM of its own: nothing is watched any more."""
        self.failure: LauncherError | None = None
        """Why the server was given up."""

    def start(self) -> None:
        """Begin to watch."""
        self._watch_server()
        self._write_record()
        self._thread.start()

    def stop(self) -> None:
        """Stop watching. Safe to call twice."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)
        if self.failure is None:
            self._server_record.state = "stopped"
            self._write_record()

    def restarts(self) -> dict[str, dict[str, int]]:
        """By model, and under an empty name for the server: restarts by reason."""
        return {"": dict(self._server_record.restarts)} | {
            name: dict(record.restarts) for name, record in self._records.items()
        }

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
        if self._record_missing:
            self._write_record()
        try:
            regions = self._server.protect_memory()
            self._check_server(now)
            self._handle_results(now)
            for model in self._models.values():
                self._check_processes(model, now)
            for model in self._models.values():
                self._replace_if_due(model, now)
            self._check_dead_instances(regions, now)
            self._start_count(now)
        except _ServerNeededError as error:
            self._restart_server(error.failure)

    def _check_server(self, now: float) -> None:
        if (status := self._server.poll()) == 0:
            raise _EndedError
        if status is not None:
            raise _ServerNeededError(DIED, f"tritonserver ended with status {status}")
        if child_state(self._server.pid, os.getpid()) != _STOPPED:
            self._stopped_since = None
        else:
            self._stopped_since = self._stopped_since or now
            if now - self._stopped_since >= self._limits.stopped_s:
                raise _ServerNeededError(
                    STOPPED, f"tritonserver was stopped for {self._limits.stopped_s:g} s"
                )
        if self._silences >= self._limits.server_failures:
            raise _ServerNeededError(UNRESPONSIVE, f"tritonserver did not answer {self._silences} times")
        if (back_s := self._wall_clock.set_back_s()) > self._limits.set_back_s:
            self._on_set_back(back_s, now)
        self._replace_if_set_back(now)

    def _on_set_back(self, back_s: float, now: float) -> None:
        is_known = bool(self._set_back)
        self._set_back = f"the clock was set back by {back_s:.0f} s, for which tritonserver may hang"
        most = self._limits.set_back_attempts
        if most and not is_known and self._set_backs.next_at(now) is None:
            self._report(
                f"{self._set_back}; the server was started again {most} times for that within "
                f"{self._limits.window_s:g} s, and is so once more only when the first is that long ago"
            )

    def _replace_if_set_back(self, now: float) -> None:
        if not self._set_back:
            return
        due = self._set_backs.next_at(now)
        if not self._limits.set_back_attempts or (due is not None and now >= due):
            raise _ServerNeededError(SET_BACK, self._set_back)

    def _check_dead_instances(self, regions: int, now: float) -> None:
        """Count the regions without a process, and replace a server that holds too many."""
        models = self._models.values()
        if not any(model.busy or model.failed for model in models):  # a new process is found after its region
            retired = {pid for model in models for pid in model.retired}
            living = sum(len(model.stubs) for model in models)
            living += sum(bool(child_state(pid, self._server.pid)) for pid in retired)
            number = max(0, regions - living)
            if number != self._dead.number:
                self._dead.number = number
                self._start_thread(self._show_dead_instances, number)
        if self._dead.is_due(now, self._server.drain_file, self._report):
            raise _ServerNeededError(DEAD_INSTANCES, self._dead.describe())

    def _show_dead_instances(self, _generation: int, number: int) -> None:
        self._reloader.show_dead_instances(number)

    # --- models -----------------------------------------------------------------------------

    def _check_processes(self, model: _Model, now: float) -> None:
        if model.busy:  # there are new ones
            self._watch_processes(model)
        for pid, stub in list(model.stubs.items()):
            state = child_state(pid, self._server.pid)
            if not state:
                self._on_process_ended(model, stub, now)
            elif state != _STOPPED:
                model.stopped.pop(pid, None)
                if pid not in model.killed and self._heartbeats.is_silent(self._server.folder, pid, now):
                    what = f"the event loop of process {pid} of {stub.instance} stands still"
                    self._kill(model, stub, Failure(UNRESPONSIVE, what))
            elif now - model.stopped.setdefault(pid, now) >= self._limits.model_stopped_s:
                self._kill(model, stub, Failure(STOPPED, f"process {pid} of {stub.instance} was stopped"))

    def _kill(self, model: _Model, stub: Stub, failure: Failure) -> None:
        """Kill a process; the next check finds it dead."""
        model.killed.setdefault(stub.pid, failure)
        kill_process(stub.pid)

    def _on_process_ended(self, model: _Model, stub: Stub, now: float) -> None:
        if self._server.poll() is not None:  # which takes its processes with it
            return
        died = Failure(DIED, f"process {stub.pid} of {stub.instance} died")
        failure = model.killed.pop(stub.pid, died)
        model.stopped.pop(stub.pid, None)
        del model.stubs[stub.pid]
        self._heartbeats.forget(stub.pid)
        self.wrecks += 1
        if not model.stubs:
            # Triton ends none of the streams that were under way: their callers look at this file. Without
            # room for it, they wait for their deadlines.
            with contextlib.suppress(OSError):
                loss_path(self._server.folder, model.name).touch(mode=0o600)
        if model.name == CONTROL_MODEL:
            left = "one more can" if model.stubs else "none can any more"
            self._report(f"{failure.detail}; of the processes that load models, {left}")
            return
        model.failed[stub.instance] = failure
        self._schedule(model, now)
        self._report(f"{failure.detail}: {model.name} is loaded again")

    def _schedule(self, model: _Model, now: float) -> None:
        due = model.attempts.next_at(now)
        if due is None:
            detail = next(iter(model.failed.values())).detail
            if attempts := self._limits.model_attempts:
                detail = (
                    f"{model.name} was loaded again {attempts} times in {self._limits.window_s:g} s, "
                    f"and failed again ({detail})"
                )
            raise _ServerNeededError(NOT_RESTORED, detail)
        model.due = due

    def _replace_if_due(self, model: _Model, now: float) -> None:
        if not model.failed or model.busy or now < model.due:
            return
        failed = dict(model.failed)
        model.failed.clear()
        model.busy = True
        model.attempts.add(now)
        model.restarts += 1
        config = type(model.config)()
        config.CopyFrom(model.config)
        alone = renew_instances(config, failed)
        if not alone:
            renew_model(config, model.restarts)
        failure = next(iter(failed.values()))
        self._records[model.name].on_failure(failure.reason, failure.detail)
        self._write_record()
        if not alone:
            model.retired.update(model.stubs)
            model.stubs.clear()
        self._start_thread(self._load, model.name, failed, config, alone)

    def _load(
        self, generation: int, model: str, instances: Mapping[str, Failure], config: Any, alone: bool
    ) -> None:
        result = self._reloader.load(generation, model, instances, config, alone=alone)
        try:
            self._reloader.count(model, next(iter(instances.values())).reason)
        finally:  # until the result comes, the model is taken for one that is being loaded
            self._results.put(result)

    def _start_thread(self, work: Callable[..., None], *arguments: Any) -> None:
        """Do slow work in a thread of its own, which puts its result into the queue."""
        name = work.__name__.strip("_")
        threading.Thread(target=work, args=(self._generation, *arguments), name=name, daemon=True).start()

    def _handle_results(self, now: float) -> None:
        while True:
            try:
                result = self._results.get_nowait()
            except queue.Empty:
                return
            if result.generation != self._generation:
                continue
            if isinstance(result, LoadDone):
                self._on_loaded(result, now)
            elif isinstance(result, _CountsRead):
                self._on_counts(result, now)
            else:
                self._on_canary_result(result, now)

    def _on_loaded(self, result: LoadDone, now: float) -> None:
        model = self._models[result.model]
        model.busy = False
        model.config = result.config
        model.liveness.mark_alive(now)
        self._watch_processes(model)
        record = self._records[model.name]
        # A failure of one that it calls may be why it does not answer; its canary comes again later.
        if not result.error or (result.loaded and self._may_lack_others(model.name)):
            took_s = record.on_restored()
            number = sum(record.restarts.values())
            self._report(f"{model.name} answers again after {took_s:.1f} s (restart {number})")
            self._write_record()
            return
        self._report(result.error)
        if result.hopeless:
            raise _ServerNeededError(NOT_RESTORED, result.error)
        # Whatever does not answer now is replaced with the next attempt.
        for instance, failure in result.instances.items():
            model.failed.setdefault(instance, failure)
        self._schedule(model, now)

    def _watch_processes(self, model: _Model) -> None:
        for stub in find_stubs(self._server.pid):
            if stub.model == model.name and stub.pid not in model.retired:
                model.stubs.setdefault(stub.pid, stub)

    # --- canaries ---------------------------------------------------------------------------

    def _start_count(self, now: float) -> None:
        """Read at intervals what the models have completed."""
        if not self._counting and now >= self._next_counts:
            self._next_counts = now + self._limits.quiet_s / 4
            self._counting = True
            self._start_thread(self._read_counts)

    def _read_counts(self, generation: int) -> None:
        counts = None
        try:
            counts = self._read_server_counts(self._server.own_address)
        except ConnectionError as error:
            _log.warning("the counts of completed requests were not read: %s", error)
        finally:
            self._results.put(_CountsRead(generation, counts))

    def _on_counts(self, result: _CountsRead, now: float) -> None:
        """Call the canaries of models that have completed nothing for a while."""
        self._counting = False
        if result.counts is None:
            self._silences += 1
            return
        self._silences = 0
        for name, model in self._models.items():
            model.liveness.on_counts(result.counts.get(name, ()), now)
        quiet = {
            name
            for name, model in self._models.items()
            if name in self._canaries
            and model.liveness.is_quiet(now, self._limits.quiet_s)
            and self._is_settled(name)
        }
        for name in tuple(quiet):
            # Whether one of them is at fault is to be known when this model is judged.
            if self._models[name].liveness.misses:
                quiet |= {
                    other for other in self._loaded_callees(name) if not self._models[other].liveness.asking
                }
        for name in quiet:
            self._models[name].liveness.asking = True
            processes = [
                pid for each in (name, *self._loaded_callees(name)) for pid in self._models[each].stubs
            ]
            self._start_thread(self._ask, name, processes)

    def _loaded_callees(self, name: str) -> list[str]:
        return [other for other in self._callees(name) if other in self._models and other in self._canaries]

    def _is_settled(self, name: str) -> bool:
        """Whether neither a model nor one that it calls is being replaced, or to be replaced."""
        models = [self._models[each] for each in (name, *self._loaded_callees(name))]
        return not any(model.busy or model.failed for model in models)

    def _may_lack_others(self, name: str) -> bool:
        """Whether a model may be silent only because one that it calls fails."""
        models = [self._models[each] for each in self._loaded_callees(name)]
        return any(
            model.busy or model.failed or model.liveness.asking or model.liveness.misses for model in models
        )

    def _ask(self, generation: int, model: str, processes: Collection[int]) -> None:
        began = time.monotonic()
        outcome = ask_canary(
            model,
            self._canaries[model],
            self._server.own_address,
            processes=processes,
            deadline_s=self._limits.canary_s,
            wait=self._stopping.wait,
        )
        self._results.put(_CanaryDone(generation, outcome, began))

    def _on_canary_result(self, answered: _CanaryDone, now: float) -> None:
        outcome = answered.outcome
        model = self._models[outcome.model]
        liveness = model.liveness
        liveness.asking, liveness.asked_at = False, now
        if not outcome.error:
            liveness.mark_alive(now)
        elif answered.began < liveness.alive_at:
            pass  # it works; a process that has been replaced since may not have answered
        elif not self._is_settled(model.name):
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
            for stub in model.stubs.values():
                self._kill(model, stub, failure)

    # --- the server -------------------------------------------------------------------------

    def _watch_server(self) -> None:
        self._generation += 1
        self._counting = False
        self._silences, self._stopped_since, self.wrecks = 0, None, 0
        self._set_back = ""
        self._dead.number = 0
        self._heartbeats = Heartbeats(self._limits.silent_s, self._limits.working_s)
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
        self._records |= {name: RestartRecord() for name in self._server.models if name not in self._records}
        for record in self._records.values():
            record.state = "serving"
        self._start_thread(self._show_counters)

    def _show_counters(self, _generation: int) -> None:
        self._reloader.show_counters(list(self._server.models))

    def _restart_server(self, failure: Failure) -> None:
        """Start the server again until it serves or is given up."""
        self._server_record.on_failure(failure.reason, failure.detail)
        error: LauncherError | OSError | None = None
        own = {SET_BACK: self._set_backs, DEAD_INSTANCES: self._dead.restarts}
        attempts = own.get(failure.reason, self._attempts)
        while True:
            now = time.monotonic()
            due = attempts.next_at(now)
            if due is None:
                self._server_record.state = "failed"
                self._write_record()
                self.failure = RestartLimitError(self._describe_end(failure, error))
                return
            if error is None:
                self._report(f"{failure.detail}: the server is started again")
            self._write_record()
            if self._stopping.wait(due - now):
                return
            attempts.add(time.monotonic())
            self._dead.end_drain()
            try:
                self._server.restart()
                break
            except StartInterruptedError:
                raise
            except (LauncherError, OSError) as again:  # OSError: no memory, no room for the log
                error, attempts = again, self._attempts
                self._report(f"the server was not started: {again}")
        self._watch_server()
        self._report(f"the server answers again after {self._server_record.on_restored():.1f} s")
        self._write_record()
        for name, reasons in self.restarts().items():  # its counters begin at zero
            for reason, number in reasons.items():
                self._reloader.count(name, reason, number)

    def _describe_end(self, failure: Failure, error: LauncherError | OSError | None) -> str:
        attempts = self._limits.server_attempts
        again = f"; it was started again {attempts} times in {self._limits.window_s:g} s" if attempts else ""
        cause = f" {error}" if error else f" The log's last lines:\n{self._server.log_tail()}"
        return f"The server is given up: {failure.detail}{again}.{cause}"

    def _write_record(self) -> None:
        """Write the record; if that fails, as on a full disk, it is tried again with every look."""
        was_missing = self._record_missing
        try:
            write_record(self._record_path, self._server_record, self._records)
        except OSError as error:
            self._record_missing = True
            if not was_missing:
                _log.warning("the record of restarts was not written: %s", error)
        else:
            self._record_missing = False
