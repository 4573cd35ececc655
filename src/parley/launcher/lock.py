"""One server per state folder, even if its launcher was killed.

The lock is held through a file descriptor that ``tritonserver`` and its stubs inherit: it stays
locked until the last of them has gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from pathlib import Path
from typing import Any

import psutil

from parley.launcher.errors import AlreadyRunningError
from parley.launcher.processes import kill_session


class StateLock:
    """The lock of a state folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._record = folder / "server.json"
        self._file = -1
        self._noted: dict[str, Any] = {}
        self.ended: list[int] = []
        """Processes of a server without a launcher that :meth:`acquire` has ended."""

    def acquire(self) -> int:
        """Take the lock, ending a server whose launcher has died; returns the descriptor.

        Raises:
            AlreadyRunningError: a live launcher has it.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if not self._try():
            self._end_orphan()
            if not self._try():
                self._close()
                raise AlreadyRunningError(self._explain())
        return self._file

    def record(self, session: int, endpoints: str) -> None:
        """Note who runs, for the next start and for people."""
        launcher = psutil.Process()
        self._noted = {
            "launcher": launcher.pid,
            "launcher_started": launcher.create_time(),
            "session": session,
            "endpoints": endpoints,
        }
        self._record.write_text(json.dumps(self._noted))

    def record_stop(self) -> None:
        """Note that the server is being stopped, for the next start; without a record nothing happens."""
        if self._file >= 0 and self._noted:
            with contextlib.suppress(OSError):  # without room on the disk, the server is stopped all the same
                self._record.write_text(json.dumps({**self._noted, "stopping": True}))

    def release(self) -> None:
        """Give the lock back and remove the note; safe to call twice and without the lock."""
        if self._file >= 0:
            self._record.unlink(missing_ok=True)
            self._noted = {}
            self._close()

    def _close(self) -> None:
        os.close(self._file)
        self._file = -1

    def _try(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _read(self) -> dict[str, float]:
        try:
            found: dict[str, float] = json.loads(self._record.read_text())
        except (FileNotFoundError, ValueError):
            return {}
        return found

    def _end_orphan(self) -> None:
        """The processes still alive belong to nobody: nothing would ever stop them."""
        record = self._read()
        if not record or _is_alive(int(record["launcher"]), record["launcher_started"]):
            return
        self.ended = kill_session(int(record["session"]))

    def _explain(self) -> str:
        record = self._read()
        if record.get("stopping"):
            return (
                f"The server with the state folder {self._folder} is stopping (process "
                f"{record['launcher']:.0f}). Try again in a few seconds."
            )
        who = f" (process {record['launcher']:.0f})" if record else ""
        stop = f"kill {record['launcher']:.0f}" if record else "end it"
        return (
            f"A server is already running with the state folder {self._folder}{who}. "
            f"Use that one, stop it ({stop}), or start another beside it with --name OTHER --any-port."
        )


def _is_alive(pid: int, started: float) -> bool:
    try:
        return abs(psutil.Process(pid).create_time() - started) < 1.0
    except psutil.NoSuchProcess:
        return False
