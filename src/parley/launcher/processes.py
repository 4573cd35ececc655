"""The server's processes, and the lock that keeps one server per state folder.

The server is started in a session of its own, so that a Ctrl-C in the terminal reaches only the
launcher, and everything that the server starts can be found by that session even after the
server itself has ended. The lock is held through a file descriptor that ``tritonserver`` and its stubs
inherit: it stays locked until the last of them has ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from parley.launcher.errors import AlreadyRunningError

STUB = "triton_python_backend_stub"


@dataclass(frozen=True, kw_only=True)
class ProcessUsage:
    """Resources of one process of the server."""

    pid: int
    name: str
    """``tritonserver``, or the model instance of a stub (``espeak_0_0``)."""
    rss_bytes: int
    private_bytes: int
    """Memory that only this process uses."""
    cpu_s: float
    """Processor time since its start."""
    threads: int
    open_files: int


def session_members(session: int) -> list[psutil.Process]:
    """Every live process of a session."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            continue
    return found


def kill_session(session: int, deadline_s: float = 5.0) -> list[int]:
    """Kill the remaining processes of a session; returns their numbers."""
    killed: list[int] = []
    end = time.monotonic() + deadline_s
    while (members := session_members(session)) and time.monotonic() < end:
        for process in members:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
            if process.pid not in killed:
                killed.append(process.pid)
        psutil.wait_procs(members, timeout=1.0)
    return killed


@dataclass(frozen=True, kw_only=True)
class Stub:
    """The process of one model instance."""

    pid: int
    model: str
    instance: str
    """``espeak_0_0``: the name of its group, and its number in it."""


def find_stubs(server: int) -> list[Stub]:
    """The living processes of a server's model instances."""
    try:
        children = psutil.Process(server).children()
    except psutil.NoSuchProcess:
        return []
    found = []
    for process in children:
        try:
            command = process.cmdline()
            if command and _program(command) == STUB and process.status() != psutil.STATUS_ZOMBIE:
                found.append(Stub(pid=process.pid, model=_model(command), instance=_name(command)))
        except psutil.NoSuchProcess:
            continue
    return found


def child_state(pid: int, parent: int) -> str:
    """The kernel's letter for the state of a child (``S``, ``R``, ``T`` ...); empty: it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    # The name before them stands in brackets, and may itself have any character.
    state, ppid = text.rpartition(")")[2].split()[:2]
    return "" if state in "ZX" or int(ppid) != parent else state


def kill_process(pid: int) -> None:
    """Kill a process that may have ended already."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def processor_demand_s(processes: Iterable[int]) -> float:
    """Processor time that living processes and their descendants have needed so far (seconds).

    It is what they got, and for how long their threads were ready to run and got none: a process that works
    on a crowded machine differs by it from one that hangs.
    """
    needed = 0.0
    for pid in processes:
        try:
            process = psutil.Process(pid)
            family = [process, *process.children(recursive=True)]
        except psutil.Error:
            continue
        for member in family:
            with contextlib.suppress(psutil.Error):
                times = member.cpu_times()
                needed += times.user + times.system + waiting_s(member.pid)
    return needed


def waiting_s(pid: int, proc: Path = Path("/proc")) -> float:
    """For how long a process's living threads have waited for a processor, added up (seconds).

    0.0 if the process has ended, or the kernel does not count it (``CONFIG_SCHED_INFO``).
    """
    waited_ns = 0
    for path in proc.glob(f"{pid}/task/*/schedstat"):
        # Nanoseconds on a processor, nanoseconds of waiting for one, turns. A thread may end meanwhile.
        with contextlib.suppress(OSError, IndexError):
            waited_ns += int(path.read_text().split()[1])
    return waited_ns / 1e9


def usage(session: int) -> list[ProcessUsage]:
    """The present resources of every process of the session."""
    found = []
    for process in session_members(session):
        try:
            with process.oneshot():
                memory = process.memory_full_info()
                times = process.cpu_times()
                found.append(
                    ProcessUsage(
                        pid=process.pid,
                        name=_name(process.cmdline()),
                        rss_bytes=memory.rss,
                        private_bytes=memory.uss,
                        cpu_s=times.user + times.system,
                        threads=process.num_threads(),
                        open_files=process.num_fds(),
                    )
                )
        except psutil.NoSuchProcess:
            continue
    return found


def _name(command: list[str]) -> str:
    """A stub's arguments end with its instance's name and the kind of its runtime."""
    if not command:
        return "unknown"
    program = _program(command)
    return command[-2] if program == STUB and len(command) > 2 else program


def _program(command: list[str]) -> str:
    return os.path.basename(command[0])  # noqa: PTH119 - argv is text, not necessarily a path


def _model(command: list[str]) -> str:
    """A stub's first argument is ``…/MODEL/VERSION/model.py``."""
    return Path(command[1]).parent.parent.name if len(command) > 1 else ""


class StateLock:
    """The lock of a state folder; it outlives a launcher that was killed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._record = folder / "server.json"
        self._file = -1
        self._noted: dict[str, Any] = {}
        self.ended: list[int] = []
        """Processes of a server without a launcher that :meth:`acquire` has ended."""
        self.left_prefix = ""
        """Prefix of the shared memory and temporary files of such a server. A process number would not tell
        that it is dead: in a container that was started again the numbers begin anew."""

    def check(self) -> bool:
        """Whether the lock is free; False: a server holds it whose launcher has died.

        Raises:
            AlreadyRunningError: a live launcher holds the lock.
        """
        if not self._folder.is_dir():
            return True
        self._open()
        try:
            if self._try():
                return True
            if not self._is_orphan(self._read()):
                raise AlreadyRunningError(self._explain())
            return False
        finally:
            self._close()

    def acquire(self) -> int:
        """Lock the folder and return the descriptor; ends a server whose launcher has died.

        Raises:
            AlreadyRunningError: a live launcher holds the lock.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        self._open()
        if not self._try():
            self._end_orphan()
            if not self._try():
                self._close()
                raise AlreadyRunningError(self._explain())
        self.left_prefix = str(self._read().get("prefix", ""))
        return self._file

    def record(self, session: int, endpoints: str, prefix: str, drain_file: str, agents: str) -> None:
        """Write down the launcher and its server, for the next start, for people and for ``parley``."""
        launcher = psutil.Process()
        self._noted = {
            "launcher": launcher.pid,
            "launcher_started": launcher.create_time(),
            "session": session,
            "endpoints": endpoints,
            "prefix": prefix,
            "drain_file": drain_file,
            "agents": agents,
        }
        self._record.write_text(json.dumps(self._noted))

    def record_stop(self) -> None:
        """Write down that the server is being stopped; does nothing without a record."""
        if self._file >= 0 and self._noted:
            with contextlib.suppress(OSError):  # without room on the disk, the server is stopped all the same
                self._record.write_text(json.dumps({**self._noted, "stopping": True}))

    def release(self) -> None:
        """Unlock and remove the record; safe to call twice and without the lock."""
        if self._file >= 0:
            self._record.unlink(missing_ok=True)
            self._noted = {}
            self._close()

    def _open(self) -> None:
        self._file = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def _close(self) -> None:
        os.close(self._file)
        self._file = -1

    def _try(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _read(self) -> dict[str, Any]:
        try:
            found = json.loads(self._record.read_text())
        except (FileNotFoundError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _end_orphan(self) -> None:
        """End processes whose launcher has died: nothing else would ever stop them."""
        record = self._read()
        if self._is_orphan(record):
            self.ended = kill_session(int(record["session"]))

    @staticmethod
    def _is_orphan(record: Mapping[str, Any]) -> bool:
        """Whether a server is recorded whose launcher has died."""
        return bool(record) and not _is_alive(int(record["launcher"]), record["launcher_started"])

    def _explain(self) -> str:
        record = self._read()
        if record.get("stopping"):
            return (
                f"The server with the state folder {self._folder} is stopping (process "
                f"{record['launcher']:.0f}). Try again in a few seconds."
            )
        other = "or start another one with --name OTHER --any-port."
        if not record:  # it is written once tritonserver runs
            return (
                f"Another start with the state folder {self._folder} has just begun. "
                f"Try again in a few seconds, {other}"
            )
        return (
            f"A server is already running with the state folder {self._folder} (process "
            f"{record['launcher']:.0f}). Use that one, stop it (kill {record['launcher']:.0f}), {other}"
        )


def _is_alive(pid: int, started: float) -> bool:
    try:
        return abs(psutil.Process(pid).create_time() - started) < 1.0
    except psutil.NoSuchProcess:
        return False
