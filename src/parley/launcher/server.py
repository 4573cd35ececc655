"""The embedded server: start, restart, stop."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from parley.canaries.asking import call_canaries
from parley.canaries.connection import ServerAddress, address_of
from parley.canaries.models import CANARIES, CanaryCall, CanaryError, CanaryLateError, called_models
from parley.errors import UnsupportedVersionError
from parley.launcher import cleanup
from parley.launcher.checks import (
    check_agent_models,
    check_log_format,
    check_tools_file,
    find_unknown_settings,
    find_wrong_agents,
)
from parley.launcher.command import (
    Installation,
    assemble_backend,
    build_command,
    build_environment,
    find_installation,
)
from parley.launcher.control import ModelControl
from parley.launcher.errors import (
    LauncherSettingsError,
    ModelFailedError,
    NotReadyError,
    PortBusyError,
    ServerCrashedError,
    ServerDiedError,
    StartInterruptedError,
)
from parley.launcher.gpu import find_server_plan, follow_plan
from parley.launcher.larger_model import with_advised_model
from parley.launcher.log import PREVIOUS, LogReader, LogState
from parley.launcher.measured_calls import with_measured_calls
from parley.launcher.models import (
    CONTROL_REPOSITORY,
    ELSEWHERE,
    check_models,
    compile_entry_points,
    describe_language_model,
    describe_left_out,
    find_agents_folder,
    leave_out_absent,
    model_folders,
    read_config,
)
from parley.launcher.options import ROOT, Endpoints, ServerOptions, choose_ports, join_address
from parley.launcher.processes import ProcessUsage, StateLock, find_stubs, kill_session, usage
from parley.launcher.replacement import bound_by_room
from parley.launcher.restarts import SupervisorLimits
from parley.launcher.supervisor import Supervisor
from parley.runtime.drain import DRAIN_FILE, DRAIN_FILE_VARIABLE, SERVER_START_VARIABLE, forget_drain
from parley.runtime.features import describe_missing
from parley.runtime.gpu_plan import GpuPlan
from parley.triton.model_control import CONTROL_MODEL, FOLDER_VARIABLE

POLL_S = 0.1
CANARY_DEADLINE_S = 20.0
REPEAT_S = 30.0
"""Between two lines about a server that is still loading, and two equal ones that it does not answer yet."""
DEAD_EXIT_S = 5.0
"""Time for models to end when no request is under way and the server cannot end by itself."""
KILL_S = 5.0
PORT_ATTEMPTS = 3
"""Between choosing a free port and Triton's use of it another program may take it."""
CRASH_ATTEMPTS = 2
"""Triton 24.10 may abort while its models' processes start (``boost::interprocess::lock_exception``)."""
_CRASHES = (-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS)


class EmbeddedServer:
    """A real ``tritonserver`` on this machine, for development, tests and the demonstration.

    While it runs, :mod:`parley.launcher.supervisor` reloads models that fail, and if need be starts the
    server again on the same ports.

    Use it as a context manager, or call :meth:`start` and :meth:`stop`. Only :meth:`request_stop`
    and :meth:`kill` may be called from a signal handler or another thread.
    """

    def __init__(
        self,
        options: ServerOptions,
        *,
        installation: Installation | None = None,
        canaries: Mapping[str, CanaryCall] = CANARIES,
        limits: SupervisorLimits | None = SupervisorLimits(),  # noqa: B008 - it never changes
        launched_at: float | None = None,
        on_progress: Callable[[str], None] = lambda _: None,
        on_log: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Prepare, without starting anything.

        Args:
            options: of the server.
            installation: the Triton that is run; None: the one that the options name.
            canaries: by model; the start waits for their answers, and the supervisor calls them again.
            limits: when the supervisor acts; None: there is no supervisor.
            launched_at: from when on the server may be asked to drain (seconds since 1970), before it runs;
                None: from :meth:`start` on.
            on_progress: receives one line at every step of the start, and later, from another thread, at
                every replacement.
            on_log: receives every line of the server's log.
        """
        self._options = options
        self._installation = installation
        self._canaries = canaries
        self._limits = limits
        self._on_progress = on_progress
        self._on_log = on_log
        self._lock = StateLock(options.state_dir)
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: LogReader | None = None
        self._following = threading.Lock()
        self._supervisor: Supervisor | None = None
        self._log = LogState()
        self.shm_prefix = ""
        """Prefix of the names of this server's shared memory regions."""
        self.folder = Path()
        """For temporary files of the server's processes."""
        self.control = ModelControl(self.folder)
        """Reloads models of the running server."""
        self._descriptor = -1
        self._launched: ServerOptions | None = None
        self._settled: ServerOptions | None = None
        """With the ports of the first server that was ready: later ones get the same."""
        self._started_at = launched_at or 0.0
        """Before :meth:`restart` starts another ``tritonserver``, which goes on draining."""
        self.drain_file: Path | None = None
        """Asks the running server to drain; None: it cannot be drained."""
        self._checked = False
        self._plan: GpuPlan | None = None
        """Of this machine's GPU, once the settings are checked."""
        # Plain flags: an Event's lock may be held by the very code that a signal interrupts.
        self._stop_requested = False
        self._kill_requested = False
        self.own_address: ServerAddress = ""
        """Of gRPC, as this machine calls it."""
        self.endpoints = Endpoints(grpc="", http="", metrics="")
        """Valid once :meth:`start` has returned."""

    @property
    def log_path(self) -> Path:
        """Log of Triton and output of the models."""
        return self._options.state_dir / "triton.log"

    @property
    def pid(self) -> int:
        """Process number of ``tritonserver``, 0 when it is not running."""
        return self._process.pid if self._process else 0

    @property
    def record_path(self) -> Path:
        """JSON file with the supervisor's restarts."""
        return self._options.state_dir / "supervisor.json"

    @property
    def address(self) -> str:
        """``host:port`` of gRPC."""
        return self.endpoints.grpc

    @property
    def models(self) -> list[str]:
        """Names of the loaded models."""
        return [name for name in self._log.loaded if name != CONTROL_MODEL]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self.stop()

    def check_free(self) -> None:
        """Find at once what another server or program has: the state folder, or a port.

        Raises:
            AlreadyRunningError: a launcher runs with the same state folder.
            PortBusyError: another program listens on a given port.
        """
        if self._lock.check():  # else a server without its launcher, which the start ends, has the ports
            choose_ports(self._options)

    def check_settings(self) -> None:
        """Find what would make a start fail or wait in vain, before anything is downloaded or started.

        Raises:
            LauncherError: the options or the environment cannot be used.
        """
        check_log_format({**os.environ, **self._options.environment})
        check_models(self._options)
        self._plan = find_server_plan(self._options, os.environ)
        check_agent_models(self._options, os.environ)
        check_tools_file(self._options, os.environ)
        if self._options.tls is not None:
            self._options.tls.own_options()
        self._checked = True

    def start(self) -> Endpoints:
        """Start the server and return once it answers.

        Raises:
            LauncherError: it cannot start; the message names the remedy. Nothing is left behind.
        """
        installation = self._installation or find_installation(self._options.triton)
        self._options = with_advised_model(self._options, os.environ)
        self._options = with_measured_calls(self._options, os.environ)
        if not self._checked:
            self.check_settings()
        descriptor = self._lock.acquire()
        try:
            if self._lock.ended:
                self._on_progress(
                    f"ended a server whose launcher had been killed ({len(self._lock.ended)} processes)"
                )
            environment = {**os.environ, **self._options.environment}
            for line in find_unknown_settings(self._options.model_repository, environment):
                self._on_progress(line)
            for line in find_wrong_agents(self._options, environment):
                self._on_progress(line)
            self._leave_out_models()
            self._started_at = self._started_at or time.time()
            drain = Path(environment.get(DRAIN_FILE_VARIABLE) or self._options.state_dir / DRAIN_FILE)
            forget_drain(drain, self._started_at)
            cleanup.remove_left(self._lock.left_prefix)
            cleanup.remove_stale()
            cleanup.check_capacity(self._options)
            compile_entry_points(self._options)
            self._descriptor = descriptor
            self._on_progress("starting tritonserver")
            self._launch_and_wait(installation)
            if self._limits is not None:
                self._supervisor = Supervisor(
                    self,
                    self._canaries,
                    limits=bound_by_room(self._limits, self._options.shm_region_bytes),
                    record=self.record_path,
                    report=self._on_progress,
                    load_s=self._options.ready_timeout_s,
                    called=called_models,
                )
                self._supervisor.start()
        except BaseException:
            # No session is open yet, and Triton would finish loading before it stops.
            self._close(grace_s=0)
            raise
        return self.endpoints

    def restart(self) -> None:
        """Kill the server and start it again on the same ports; for the supervisor.

        Raises:
            LauncherError: it cannot start. Nothing is left behind; another attempt is possible.
        """
        self._end(grace_s=0)
        self._launch_and_wait(self._installation or find_installation(self._options.triton))

    def _launch_and_wait(self, installation: Installation) -> None:
        """Start the server, on other ports if a free one was taken meanwhile, and once more if it crashed."""
        ports, crashes = 0, 0
        while True:
            if self._stop_requested:  # while the server before was being killed, perhaps
                raise StartInterruptedError("The start was interrupted.")
            try:
                self._launch(installation)
                self._wait_until_ready()
            except PortBusyError:
                self._end(grace_s=0)
                ports += 1
                if ports == PORT_ATTEMPTS:
                    raise
            except ServerCrashedError as error:
                self._end(grace_s=0)
                crashes += 1
                if crashes == CRASH_ATTEMPTS:
                    raise
                self._on_progress(f"started once more: {error}")
            except BaseException:
                self._end(grace_s=0)
                raise
            else:
                return

    def _launch(self, installation: Installation) -> None:
        options = choose_ports(self._settled or self._options)
        backends = assemble_backend(installation, options.state_dir / "backends")
        self.shm_prefix = cleanup.new_prefix()
        self.folder = cleanup.make_folder(self.shm_prefix)
        self.control = ModelControl(self.folder)
        own_tls = None
        if self._options.tls is not None:
            try:
                tls, own_tls = self._options.tls.copy_to(self.folder)
            except LauncherSettingsError:
                cleanup.remove_left(self.shm_prefix)  # there is no process with whose end it would go
                raise
            options = dataclasses.replace(options, tls=tls)
        environment = {
            **build_environment(installation, options, os.environ),
            "TMPDIR": str(self.folder),
            FOLDER_VARIABLE: str(self.folder),
            SERVER_START_VARIABLE: repr(self._started_at),
        }
        with self._following:
            if self.log_path.exists():
                self.log_path.replace(self.log_path.with_suffix(PREVIOUS))
            self._log = LogState()
            # Appended to, so that the reader may shorten it.
            with self.log_path.open("ab") as log:
                self._process = subprocess.Popen(
                    build_command(installation, options, backends, self.shm_prefix),
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=(self._descriptor,),
                    start_new_session=True,
                )
            self._reader = LogReader(self.log_path)
        self.endpoints = Endpoints(
            grpc=join_address(options.grpc_address, options.grpc_port),
            http=join_address(options.http_address, options.http_port),
            metrics=join_address(options.metrics_address, options.metrics_port),
        )
        self.own_address = address_of(self.endpoints.grpc, own_tls)
        self._launched = options
        drain_file = environment[DRAIN_FILE_VARIABLE]
        self.drain_file = Path(drain_file).absolute() if drain_file else None
        self._lock.record(
            self._process.pid,
            self.endpoints.line(),
            self.shm_prefix,
            str(self.drain_file or ""),
            find_agents_folder(options, environment),
        )

    def _leave_out_models(self) -> None:
        """Leave out models without weights, and those for which the GPU has no memory."""
        plan, is_chosen = self._plan, bool(self._options.load_models)
        self._options, left_out = leave_out_absent(self._options, os.environ)
        if left_out:
            for reason in left_out.values():
                self._on_log(f"left out: {reason}")
            for line in describe_left_out(left_out, {**os.environ, **self._options.environment}):
                self._on_progress(line)
        if plan is not None:
            self._options, line = follow_plan(self._options, plan)
            self._on_progress(line)
        if left_out or plan is not None:
            check_agent_models(self._options, os.environ, left_out)
        if not is_chosen and self._options.model_repository == ROOT / "model_repository":
            elsewhere = [model for model, reason in left_out.items() if reason == ELSEWHERE]
            loaded = [*(folder.name for folder in model_folders(self._options)), *elsewhere]
            environment = {**os.environ, **self._options.environment}
            for line in (
                *describe_missing(self._options.profile, loaded),
                *describe_language_model(self._options, environment),
            ):
                self._on_progress(line)

    def _wait_until_ready(self) -> None:
        """Follow the log until Triton serves, then let the canary decide."""
        began = time.monotonic()
        end = began + self._options.ready_timeout_s
        report_at = began + REPEAT_S
        while not self._log.serving:
            self._check_start(end)
            if time.monotonic() >= report_at:
                report_at += REPEAT_S
                self._report_loading(began)
            time.sleep(POLL_S)
        reported, reported_at = "", 0.0
        while True:
            self._check_start(end)
            try:
                seen = call_canaries(self.own_address, self.models, CANARY_DEADLINE_S, self._canaries)
                break
            except CanaryError as error:
                if UnsupportedVersionError.code in str(error):  # which waiting does not change
                    raise ModelFailedError(f"{error}. The log: {self.log_path}") from error
                now = time.monotonic()
                if now + POLL_S > end:
                    is_late = isinstance(error, CanaryLateError)
                    raise NotReadyError(self._describe_timeout(str(error), is_late=is_late)) from error
                if str(error) != reported or now >= reported_at + REPEAT_S:
                    reported, reported_at = str(error), now
                    self._on_progress(f"not answering yet: {error}")
            time.sleep(POLL_S)
        self._check_start(end)
        self._settled = self._launched
        self._on_progress("; ".join(seen) if seen else "no loaded model has a canary")

    def _report_loading(self, began: float) -> None:
        if missing := self._not_loaded():
            passed, limit = time.monotonic() - began, self._options.ready_timeout_s
            self._on_progress(f"still loading {', '.join(missing)} ({passed:.0f} of at most {limit:g} s)")

    def _not_loaded(self) -> list[str]:
        return sorted(set(self._log.loading) - set(self._log.loaded) - {CONTROL_MODEL})

    def _check_start(self, end: float) -> None:
        """Read the log; raise if waiting any longer is pointless."""
        known = len(self.models)
        self.protect_memory()
        self.follow_log()
        wanted = len(self._log.loading) - (CONTROL_MODEL in self._log.loading)
        for number, model in enumerate(self.models[known:], known + 1):
            self._on_progress(f"loaded {model} ({number} of {wanted})")
        if self._stop_requested:
            raise StartInterruptedError("The start was interrupted.")
        if self._log.port_taken:
            raise PortBusyError(
                f"Triton's {self._log.port_taken} service found its port in use ({self.endpoints.line()}). "
                "Stop the other program or choose another port."
            )
        if self._log.failed:
            raise ModelFailedError(f"{self._log.describe_failures()}\nThe whole log: {self.log_path}")
        if (status := self.poll()) is not None:
            kind = ServerCrashedError if status in _CRASHES else ServerDiedError
            raise kind(
                f"tritonserver ended with status {status} while starting. Its last lines:\n"
                f"{self._log.tail()}\nThe whole log: {self.log_path}"
            )
        if time.monotonic() > end:
            raise NotReadyError(self._describe_timeout("it is still loading", is_late=True))

    def _describe_timeout(self, reason: str, *, is_late: bool) -> str:
        """Why the start failed; ``is_late``: more time might help."""
        missing = self._not_loaded()
        return (
            f"The server was not ready after {self._options.ready_timeout_s:g} s: {reason.rstrip('.')}."
            + (f" Not loaded: {', '.join(missing)}." if missing else "")
            + (" On a slow machine give it more time (--ready-timeout SECONDS)." if is_late else "")
            + f" The log: {self.log_path}"
        )

    def follow_log(self) -> None:
        """Pass new lines of the log to ``on_log``; without regular calls they arrive late."""
        with self._following:  # the supervisor reads it too while it starts the server again
            for line in self._reader.lines() if self._reader else []:
                self._log.feed(line)
                self._on_log(line)

    def log_tail(self) -> str:
        """The last lines of the log."""
        self.follow_log()
        return f"{self._log.tail()}\nThe whole log: {self.log_path}"

    def model_config(self, model: str) -> Any:
        """The ``ModelConfig`` that a model was started with."""
        folder = CONTROL_REPOSITORY if model == CONTROL_MODEL else self._options.model_repository
        return read_config(folder / model, self._options.profile)

    def restarts(self) -> dict[str, dict[str, int]]:
        """Restarts by model and reason; an empty name: the server."""
        return self._supervisor.restarts() if self._supervisor else {}

    def poll(self) -> int | None:
        """The server's exit status, or None while it runs (or was never started)."""
        return self._process.poll() if self._process else None

    def protect_memory(self) -> int:
        """Keep other users from the processes' shared memory; returns the number of regions."""
        return cleanup.protect_regions(self.shm_prefix)

    def wait(self) -> int:
        """Return 0 on :meth:`request_stop`, and when another process has ended the server with a signal.

        Unsupervised, the exit status of a server that ended by itself is returned. :meth:`stop` is still to
        be called.

        Raises:
            RestartLimitError: the server failed too often.
        """
        while not self._stop_requested:
            self.follow_log()
            if self._supervisor is None:
                if (status := self.poll()) is not None:
                    return status
            elif self._supervisor.failure is not None:
                raise self._supervisor.failure
            elif self._supervisor.ended:
                return 0
            time.sleep(POLL_S)
        return 0

    def request_stop(self) -> None:
        """Make :meth:`start` give up or :meth:`wait` return."""
        self._stop_requested = True

    def kill(self) -> None:
        """Make :meth:`stop` skip the wait for open sessions."""
        self._stop_requested = True
        self._kill_requested = True

    def stop(self) -> None:
        """End the server and everything it started; safe to call twice.

        Open sessions get ``exit_timeout_s`` to end; after that the processes are killed.
        """
        self._stop_requested = True
        self._lock.record_stop()
        if self._supervisor is not None:
            self._supervisor.stop()
        self._close(grace_s=self._options.exit_timeout_s + 5)

    def _close(self, grace_s: float) -> None:
        try:
            self._end(grace_s)
        finally:
            self._lock.release()

    def _end(self, grace_s: float) -> None:
        process = self._process
        if process is None:
            return
        try:
            # The server would wait for dead processes until its exit timeout.
            holds_dead = grace_s > 0 and self._holds_dead_instances(process)
            process.send_signal(signal.SIGTERM)
            self._await_exit(process, grace_s, holds_dead=holds_dead)
        finally:  # whatever interrupts the wait, for example an unhandled Ctrl-C
            self._clear(process, report=grace_s > 0)

    def _holds_dead_instances(self, process: subprocess.Popen[bytes]) -> bool:
        if self._supervisor is not None:
            return self._supervisor.holds_dead_instances
        # Nothing is loaded again, so a region without a process is one of a dead instance. Where the server
        # runs behind another program, no process is found, and nothing is known of dead ones.
        return 0 < len(find_stubs(process.pid)) < self.protect_memory()

    def _await_exit(self, process: subprocess.Popen[bytes], grace_s: float, *, holds_dead: bool) -> None:
        end = time.monotonic() + grace_s
        while process.poll() is None and not self._kill_requested and time.monotonic() < end:
            if holds_dead:
                self.follow_log()
                if self._log.unloading:  # sessions are over
                    self._await_stubs(process, min(end, time.monotonic() + DEAD_EXIT_S))
                    return
            time.sleep(POLL_S)
        if process.poll() is None and grace_s > 0 and not self._kill_requested:
            self._on_progress("the server did not stop in time and is killed")

    def _await_stubs(self, process: subprocess.Popen[bytes], end: float) -> None:
        while find_stubs(process.pid) and not self._kill_requested and time.monotonic() < end:
            time.sleep(POLL_S)

    def _clear(self, process: subprocess.Popen[bytes], *, report: bool) -> None:
        """Kill the remaining processes and remove their files."""
        process.kill()
        killed = kill_session(process.pid)
        try:
            process.wait(KILL_S)
        except subprocess.TimeoutExpired:  # in the kernel's hands, for example on a dead disk
            self._on_progress(f"process {process.pid} does not end although it was killed")
        if killed and report:
            self._on_progress(f"killed {len(killed)} processes that the server left behind")
        cleanup.remove_left(self.shm_prefix)
        self.follow_log()
        self._process = None

    def usage(self) -> list[ProcessUsage]:
        """Present resources of the server's processes; empty when it is not running."""
        return usage(self._process.pid) if self._process else []
