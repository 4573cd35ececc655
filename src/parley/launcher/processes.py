"""The server's processes: ``tritonserver`` and one stub per model instance.

The server is started in a session of its own, so that a Ctrl-C in the terminal reaches only the
launcher, and everything that the server starts can be found by that session even after the
server itself is gone.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import psutil

STUB = "triton_python_backend_stub"


@dataclass(frozen=True, kw_only=True)
class ProcessUsage:
    """What one process of the server uses."""

    pid: int
    name: str
    """``tritonserver``, or the model instance of a stub (``espeak_0_0``)."""
    rss_bytes: int
    """Resident memory, shared parts included."""
    private_bytes: int
    """Memory that only this process uses."""
    cpu_s: float
    """Processor time since its start (seconds)."""
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
    """Kill what is left of a session; returns the process numbers that were killed."""
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


class StubWatch:
    """Notices model processes that end while their server runs.

    Args:
        server: process number of the server, whose models are loaded.
        interval_s: seconds between two looks.
    """

    def __init__(self, server: int, interval_s: float) -> None:
        self._stubs = _find_stubs(server)
        self._interval_s = interval_s
        self._next = time.monotonic() + interval_s

    def dead(self) -> list[str]:
        """Names of the instances whose process has ended; looks only if it is time to."""
        if time.monotonic() < self._next:
            return []
        self._next = time.monotonic() + self._interval_s
        return [name for pid, name in self._stubs.items() if not _is_alive(pid)]


def _find_stubs(server: int) -> dict[int, str]:
    """Process number to the instance's name."""
    found = {}
    try:
        children = psutil.Process(server).children()
    except psutil.NoSuchProcess:
        return {}
    for process in children:
        try:
            command = process.cmdline()
        except psutil.NoSuchProcess:
            continue
        if command and _program(command) == STUB:
            found[process.pid] = _name(command)
    return found


def _is_alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def usage(session: int) -> list[ProcessUsage]:
    """What every process of the session uses now."""
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
