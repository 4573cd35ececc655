"""Watching a running server, and replacing what fails.

A model's process that ends, is stopped, or does not answer its canary is replaced by loading that model alone
again; of a model whose instances are groups of their own, only the failed instance. A model that fails too
often within a window, and a server that ends or does not answer, cost a new server. A server that fails too
often is given up.

What Triton 24.10 does of itself: a request to a dead process gets an error after a second, one after the
other; the responses of a decoupled request that was under way never come, and its caller waits for its own
deadline. A model that is loaded anew is loaded beside the dead one, and takes its place when it is ready;
the rest of the dead one stays in the server until that ends.
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
from typing import Any, Protocol

from google.protobuf import json_format

from parley.canaries import CanaryCall, called_models
from parley.launcher.canary import Asked, Liveness, ask_canary, read_counts
from parley.launcher.control import ControlError, ModelControl
from parley.launcher.errors import LauncherError, RestartLimitError, StartInterruptedError
from parley.launcher.heartbeats import Heartbeats
from parley.launcher.models import renew_instances, renew_model
from parley.launcher.processes import Stub, child_state, find_stubs, kill_process
from parley.launcher.restarts import Attempts, Record, SupervisorLimits, write_record
from parley.launcher.slots import held_slots
from parley.triton.model_control import CONTROL_MODEL

DIED = "died"
"""A process ended."""
STOPPED = "stopped"
"""A process was stopped by a signal (SIGSTOP), and killed for it."""
UNRESPONSIVE = "unresponsive"
"""A model did not answer its canary, or the server did not answer at all."""
NOT_RESTORED = "model_not_restored"
"""A server was replaced because one of its models could not be."""

_REASONS = (DIED, STOPPED, UNRESPONSIVE)
_STOPPED = "T"  # not "t": a debugger holds that one
_FIRST_CANARY_S = 8.0
"""For a model that was just loaded: its first answer may take longer than those that follow (seconds)."""
_JOIN_S = 10.0
_log = logging.getLogger(__name__)


class SupervisedServer(Protocol):
    """What the supervisor needs of :class:`parley.launcher.server.EmbeddedServer`."""

    @property
    def pid(self) -> int:
        """Process number of ``tritonserver``."""
        ...

    @property
    def address(self) -> str:
        """``host:port`` of gRPC."""
        ...

    @property
    def folder(self) -> Path:
        """Where its processes leave their heartbeats."""
        ...

    @property
    def control(self) -> ModelControl:
        """Loads models of the running server."""
        ...

    @property
    def models(self) -> list[str]:
        """Names of the loaded models."""
        ...

    def poll(self) -> int | None:
        """The server's exit status, or None while it runs."""
        ...

    def model_config(self, model: str) -> Any:
        """The ``ModelConfig`` that a model was started with."""
        ...

    def restart(self) -> None:
        """Kill the server and start it again; LauncherError if it cannot be."""
        ...

    def log_tail(self) -> str:
        """The last lines of the server's log."""
        ...


@dataclass(frozen=True)
class _Failure:
    """Why something is to be replaced."""

    reason: str
    detail: str


class _EndedError(Exception):
    """The server has ended in good order, on a signal."""


class _ServerNeededError(Exception):
    """Only a new server helps."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.failure = _Failure(reason, detail)


@dataclass
class _Model:
    """One model of the running server."""

    name: str
    config: Any
    attempts: Attempts
    liveness: Liveness
    stubs: dict[int, Stub] = field(default_factory=dict)
    """By process: what is watched."""
    retired: set[int] = field(default_factory=set)
    """Processes that Triton ends, because another has taken their place."""
    killed: dict[int, _Failure] = field(default_factory=dict)
    """By process: why it was killed."""
    failed: dict[str, _Failure] = field(default_factory=dict)
    """By instance: what is still to be replaced."""
    due: float = 0.0
    busy: bool = False
    """It is being loaded."""
    restarts: int = 0
    stopped: dict[int, float] = field(default_factory=dict)
    """By process: since when it is stopped."""


@dataclass(frozen=True)
class _Loaded:
    """A thread that loaded a model has ended."""

    generation: int
    model: str
    instances: Mapping[str, _Failure]
    config: Any
    loaded: bool
    error: str = ""
    """Why it was not loaded, or did not answer then."""
    hopeless: bool = False
    """Another attempt would end in the same way."""


@dataclass(frozen=True)
class _Counted:
    """A thread that asked what the models have completed has ended."""

    generation: int
    counts: Mapping[str, tuple[int, ...]] | None
    """None: the server did not say."""


@dataclass(frozen=True)
class _Answered:
    """A thread that asked a model its canary has ended."""

    generation: int
    asked: Asked
    began: float
    """When it was asked."""


class Supervisor:
    """Watches one server from a thread of its own.

    Args:
        server: what is watched; it runs.
        canaries: by model; a model without one is watched by its processes alone.
        limits: when to act.
        record: file that says, as JSON, what was replaced how often; written anew at every change.
        tell: takes one line for people whenever something happens.
        load_s: seconds that a model may take to load.
        called: by model, those whose answers its canary may wait for.
        counts: takes the server's address; what its models have completed.
    """

    def __init__(
        self,
        server: SupervisedServer,
        canaries: Mapping[str, CanaryCall],
        *,
        limits: SupervisorLimits,
        record: Path,
        tell: Callable[[str], None],
        load_s: float,
        called: Callable[[str], Collection[str]] = called_models,
        counts: Callable[[str], Mapping[str, tuple[int, ...]]] = read_counts,
    ) -> None:
        self._server = server
        self._canaries = canaries
        self._limits = limits
        self._path = record
        self._tell = tell
        self._load_s = load_s
        self._called = called
        self._attempts = Attempts(limits, limits.server_attempts)
        self._models: dict[str, _Model] = {}
        self._own = Record()
        self._records: dict[str, Record] = {}
        self._results: queue.SimpleQueue[_Loaded | _Counted | _Answered] = queue.SimpleQueue()
        self._generation = 0
        self._read = counts
        self._heartbeats: Heartbeats
        self._silences = 0
        self._stopped_since: float | None = None
        self._next_counts = 0.0
        self._counting = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)
        self.wrecks = 0
        """Dead instances that the running server still holds, and will hold until it is killed."""
        self.ended = False
        """The server has ended with status 0, as on a SIGTERM of its own: nothing is watched any more."""
        self.failure: LauncherError | None = None
        """Why the server was given up."""

    def start(self) -> None:
        """Begin; the server serves."""
        self._adopt_server()
        self._write()
        self._thread.start()

    def stop(self) -> None:
        """Replace nothing any more. Safe to call twice."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)
        if self.failure is None:
            self._own.state = "stopped"
            self._write()

    def restarts(self) -> dict[str, dict[str, int]]:
        """By model, and under an empty name for the server: restarts by reason."""
        return {"": dict(self._own.restarts)} | {
            name: dict(record.restarts) for name, record in self._records.items()
        }

    # --- the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.wait(self._limits.look_s) and self.failure is None:
            try:
                self._look()
            except StartInterruptedError:
                return
            except _EndedError:
                self.ended = True
                return
            except Exception as error:  # noqa: BLE001 - it must go on watching
                _log.exception("a look at the server failed")
                self._tell(f"the supervisor goes on after an error of its own: {error!r}")

    def _look(self) -> None:
        now = time.monotonic()
        try:
            self._look_at_server(now)
            self._take_results(now)
            for model in self._models.values():
                self._look_at_processes(model, now)
            for model in self._models.values():
                self._replace_if_due(model, now)
            self._look_at_use(now)
        except _ServerNeededError as error:
            self._restart_server(error.failure)

    def _look_at_server(self, now: float) -> None:
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

    # --- models -----------------------------------------------------------------------------

    def _look_at_processes(self, model: _Model, now: float) -> None:
        if model.busy:  # there are new ones
            self._adopt(model)
        for pid, stub in list(model.stubs.items()):
            state = child_state(pid, self._server.pid)
            if not state:
                self._lose(model, stub, now)
            elif state != _STOPPED:
                model.stopped.pop(pid, None)
                if pid not in model.killed and self._heartbeats.is_silent(self._server.folder, pid, now):
                    what = f"the event loop of process {pid} of {stub.instance} stands still"
                    self._kill(model, stub, _Failure(UNRESPONSIVE, what))
            elif now - model.stopped.setdefault(pid, now) >= self._limits.stopped_s:
                self._kill(model, stub, _Failure(STOPPED, f"process {pid} of {stub.instance} was stopped"))

    def _kill(self, model: _Model, stub: Stub, failure: _Failure) -> None:
        """Kill a process; one of the next looks finds it dead."""
        model.killed.setdefault(stub.pid, failure)
        kill_process(stub.pid)

    def _lose(self, model: _Model, stub: Stub, now: float) -> None:
        """A process has ended."""
        if self._server.poll() is not None:  # which takes its processes with it
            return
        died = _Failure(DIED, f"process {stub.pid} of {stub.instance} died")
        failure = model.killed.pop(stub.pid, died)
        model.stopped.pop(stub.pid, None)
        del model.stubs[stub.pid]
        self._heartbeats.forget(stub.pid)
        self.wrecks += 1
        if model.name == CONTROL_MODEL:
            left = "one more can" if model.stubs else "none can any more"
            self._tell(f"{failure.detail}; of the processes that load models, {left}")
            return
        model.failed[stub.instance] = failure
        self._schedule(model, now)
        self._tell(f"{failure.detail}: {model.name} is loaded again")

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
        self._records[model.name].began(failure.reason, failure.detail)
        self._write()
        if not alone:
            model.retired.update(model.stubs)
            model.stubs.clear()
        self._begin(self._load, model.name, failed, config, alone)

    def _begin(self, work: Callable[..., None], *arguments: Any) -> None:
        """Do what may take long in a thread of its own; what comes of it is put into the queue."""
        name = work.__name__.strip("_")
        threading.Thread(target=work, args=(self._generation, *arguments), name=name, daemon=True).start()

    def _load(
        self, generation: int, model: str, instances: Mapping[str, _Failure], config: Any, alone: bool
    ) -> None:
        """Load a model and ask its canary."""
        control = self._server.control
        loaded, error, hopeless = False, "", False
        try:
            text = json_format.MessageToJson(config, preserving_proto_field_name=True)
            if alone:
                with held_slots(self._server.address, config, len(instances)):
                    control.load(model, text, self._load_s)
            else:
                control.load(model, text, self._load_s)
            loaded = True
        except Exception as failure:  # noqa: BLE001 - the supervisor waits for the result
            error = f"{model} was not loaded: {failure}"
            hopeless = not (isinstance(failure, ControlError) and failure.refused)
            if not alone:
                # So that callers, and Triton's own ready endpoint, are not kept in the dark meanwhile.
                with contextlib.suppress(ControlError):
                    control.unload(model)
        else:
            try:
                self._ask_until(model, time.monotonic() + self._limits.reload_canary_s)
            except Exception as failure:  # noqa: BLE001 - whatever it is, the model does not answer
                error = f"{model} was loaded, but does not answer: {failure}"
        try:
            self._count(control, model, next(iter(instances.values())).reason)
        finally:  # until it comes, the model is taken for one that is being loaded
            self._results.put(_Loaded(generation, model, instances, config, loaded, error, hopeless))

    def _ask_until(self, model: str, end: float) -> None:
        """Call a model's canary until it succeeds."""
        canary = self._canaries.get(model)
        while canary is not None:
            try:
                canary(self._server.address, _FIRST_CANARY_S)
            except Exception:
                if time.monotonic() > end or self._stopping.is_set():
                    raise
                time.sleep(self._limits.look_s)
            else:
                return

    def _take_results(self, now: float) -> None:
        while True:
            try:
                result = self._results.get_nowait()
            except queue.Empty:
                return
            if result.generation != self._generation:
                continue
            if isinstance(result, _Loaded):
                self._take_loaded(result, now)
            elif isinstance(result, _Counted):
                self._take_counts(result, now)
            else:
                self._take_answer(result, now)

    def _take_loaded(self, result: _Loaded, now: float) -> None:
        model = self._models[result.model]
        model.busy = False
        model.config = result.config
        model.liveness.answered(now)
        self._adopt(model)
        record = self._records[model.name]
        # If one that it calls fails, that may be why it does not answer; later it is asked again.
        if not result.error or (result.loaded and self._may_lack_others(model.name)):
            took_s = record.ended()
            number = sum(record.restarts.values())
            self._tell(f"{model.name} answers again after {took_s:.1f} s (restart {number})")
            self._write()
            return
        self._tell(result.error)
        if result.hopeless:
            raise _ServerNeededError(NOT_RESTORED, result.error)
        # Whatever does not answer now is replaced with the next attempt.
        for instance, failure in result.instances.items():
            model.failed.setdefault(instance, failure)
        self._schedule(model, now)

    def _adopt(self, model: _Model) -> None:
        """Watch the processes that a model has now."""
        for stub in find_stubs(self._server.pid):
            if stub.model == model.name and stub.pid not in model.retired:
                model.stubs.setdefault(stub.pid, stub)

    # --- canaries ---------------------------------------------------------------------------

    def _look_at_use(self, now: float) -> None:
        """Find out what the models have completed, now and then."""
        if not self._counting and now >= self._next_counts:
            self._next_counts = now + self._limits.quiet_s / 4
            self._counting = True
            self._begin(self._read_counts)

    def _read_counts(self, generation: int) -> None:
        counts = None
        try:
            counts = self._read(self._server.address)
        except ConnectionError as error:
            _log.warning("the server did not say what its models did: %s", error)
        finally:
            self._results.put(_Counted(generation, counts))

    def _take_counts(self, result: _Counted, now: float) -> None:
        """Ask the models that have completed nothing for a while."""
        self._counting = False
        if result.counts is None:
            self._silences += 1
            return
        self._silences = 0
        for name, model in self._models.items():
            model.liveness.count(result.counts.get(name, ()), now)
        quiet = {
            name
            for name, model in self._models.items()
            if name in self._canaries
            and model.liveness.is_quiet(now, self._limits.quiet_s)
            and self._is_in_place(name)
        }
        for name in tuple(quiet):
            # Whether one of them is at fault is to be known when this model is judged.
            if self._models[name].liveness.misses:
                quiet |= {other for other in self._called_by(name) if not self._models[other].liveness.asking}
        for name in quiet:
            self._models[name].liveness.asking = True
            processes = [pid for each in (name, *self._called_by(name)) for pid in self._models[each].stubs]
            self._begin(self._ask, name, processes)

    def _called_by(self, name: str) -> list[str]:
        """The loaded models with canaries that a model calls."""
        return [other for other in self._called(name) if other in self._models and other in self._canaries]

    def _is_in_place(self, name: str) -> bool:
        """Whether neither a model nor one that it calls is being replaced, or to be replaced."""
        models = [self._models[each] for each in (name, *self._called_by(name))]
        return not any(model.busy or model.failed for model in models)

    def _may_lack_others(self, name: str) -> bool:
        """Whether a model that does not answer may be without fault, because one that it calls fails."""
        models = [self._models[each] for each in self._called_by(name)]
        return any(
            model.busy or model.failed or model.liveness.asking or model.liveness.misses for model in models
        )

    def _ask(self, generation: int, model: str, processes: Collection[int]) -> None:
        began = time.monotonic()
        asked = ask_canary(
            model,
            self._canaries[model],
            self._server.address,
            processes=processes,
            deadline_s=self._limits.canary_s,
            wait=self._stopping.wait,
        )
        self._results.put(_Answered(generation, asked, began))

    def _take_answer(self, answered: _Answered, now: float) -> None:
        asked = answered.asked
        model = self._models[asked.model]
        liveness = model.liveness
        liveness.asking, liveness.asked_at = False, now
        if not asked.error:
            liveness.answered(now)
        elif answered.began < liveness.alive_at:
            pass  # it works; a process that has been replaced since may not have answered
        elif not self._is_in_place(model.name):
            pass  # one that it calls has failed meanwhile, or it has itself
        elif asked.working and now - liveness.alive_at < self._limits.working_s:
            liveness.misses = 0
        elif liveness.misses == 0:
            liveness.misses = 1
            self._next_counts = now  # at once
            self._tell(f"{model.name} failed its canary, and is asked again: {asked.error}")
        elif not self._may_lack_others(model.name):
            liveness.misses = 0
            failure = _Failure(UNRESPONSIVE, f"{model.name} failed its canary twice ({asked.error})")
            for stub in model.stubs.values():
                self._kill(model, stub, failure)

    # --- the server -------------------------------------------------------------------------

    def _adopt_server(self) -> None:
        """Watch a server that has just been started."""
        self._generation += 1
        self._counting = False
        self._silences, self._stopped_since, self.wrecks = 0, None, 0
        self._heartbeats = Heartbeats(self._limits.silent_s, self._limits.working_s)
        now = time.monotonic()
        self._next_counts = now + self._limits.quiet_s / 4
        self._models = {
            name: _Model(
                name,
                self._server.model_config(name),
                Attempts(self._limits, self._limits.model_attempts),
                Liveness(alive_at=now),
            )
            for name in (*self._server.models, CONTROL_MODEL)
        }
        for model in self._models.values():
            self._adopt(model)
        self._records |= {name: Record() for name in self._server.models if name not in self._records}
        for record in self._records.values():
            record.state = "serving"
        self._begin(self._show_counters, list(self._server.models))

    def _restart_server(self, failure: _Failure) -> None:
        """Start the server anew, again and again if it must be; returns when it serves or is given up."""
        self._own.began(failure.reason, failure.detail)
        error: LauncherError | OSError | None = None
        while True:
            now = time.monotonic()
            due = self._attempts.next_at(now)
            if due is None:
                self._own.state = "failed"
                self._write()
                self.failure = RestartLimitError(self._describe_end(failure, error))
                return
            if error is None:
                self._tell(f"{failure.detail}: the server is started again")
            self._write()
            if self._stopping.wait(due - now):
                return
            self._attempts.add(time.monotonic())
            try:
                self._server.restart()
                break
            except StartInterruptedError:
                raise
            except (LauncherError, OSError) as again:  # OSError: no memory, no room for the log
                error = again
                self._tell(f"the server was not started: {again}")
        self._adopt_server()
        self._tell(f"the server answers again after {self._own.ended():.1f} s")
        self._write()
        for name, reasons in self.restarts().items():  # its counters begin at zero
            for reason, number in reasons.items():
                self._count(self._server.control, name, reason, number)

    def _describe_end(self, failure: _Failure, error: LauncherError | OSError | None) -> str:
        attempts = self._limits.server_attempts
        again = f"; it was started again {attempts} times in {self._limits.window_s:g} s" if attempts else ""
        cause = f" {error}" if error else f" The log's last lines:\n{self._server.log_tail()}"
        return f"The server is given up: {failure.detail}{again}.{cause}"

    # --- what others may know ---------------------------------------------------------------

    def _count(self, control: ModelControl, model: str, reason: str, number: int = 1) -> None:
        try:
            control.count(model, reason, number)
        except ControlError as error:
            _log.warning("a restart was not counted on the metrics page: %s", error)

    def _show_counters(self, _generation: int, models: Collection[str]) -> None:
        """Begin every counter at zero: one that appears with its first restart shows no increase."""
        control = self._server.control
        names = [(model, reason) for model in models for reason in _REASONS]
        names += [("", reason) for reason in (*_REASONS, NOT_RESTORED)]
        try:
            for model, reason in names:
                control.count(model, reason, 0)
        except ControlError as error:
            _log.warning("counters of restarts are not on the metrics page yet: %s", error)

    def _write(self) -> None:
        write_record(self._path, self._own, self._records)
