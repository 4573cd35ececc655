"""The server's processes: ``tritonserver`` and one stub per model instance.

The server is started in a session of its own, so that a Ctrl-C in the terminal reaches only the
launcher, and everything that the server starts can be found by that session even after the
server itself is gone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

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


def processor_s(processes: Iterable[int]) -> float:
    """Processor time that living processes and their descendants have used so far (seconds)."""
    used = 0.0
    for pid in processes:
        try:
            process = psutil.Process(pid)
            family = [process, *process.children(recursive=True)]
        except psutil.Error:
            continue
        for member in family:
            with contextlib.suppress(psutil.Error):
                times = member.cpu_times()
                used += times.user + times.system
    return used


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


def _model(command: list[str]) -> str:
    """A stub's first argument is ``…/MODEL/VERSION/model.py``."""
    return Path(command[1]).parent.parent.name if len(command) > 1 else ""
