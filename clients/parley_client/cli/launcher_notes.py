"""What the launchers of this checkout note about the servers that they run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from parley_client.cli import CHECKOUT

NOTES = CHECKOUT / ".server"
"""Holds the notes, a folder for each server, which has the name of ``--name``."""
DEFAULT_NAME = "default"
"""The server of ``make serve``."""
LOCAL_HOSTS = ("127.0.0.1", "localhost", "[::1]", "0.0.0.0")  # noqa: S104 - compared, not listened on
_SAME_START_S = 1.0
_RECORD = "server.json"

ServerState: TypeAlias = Literal["", "loading", "restarting", "stopping", "lost"]


class LauncherNote(msgspec.Struct):
    """The launcher's note about the server that it runs."""

    launcher: int
    launcher_started: float
    """Start of the launcher in the system's clock (seconds)."""
    endpoints: str
    stopping: bool = False
    drain_file: str | None = None
    """The file that drains it; empty: it has none. None: the launcher is older than this field."""
    agents: str | None = None
    """Folder in which it looks for agents; empty: in none. None: the launcher is older than this field."""

    def endpoint(self, kind: str) -> str:
        """``host:port`` of its ``grpc``, ``http`` or ``metrics``; empty: the note has none."""
        found = re.search(rf"\b{kind}=(\S+)", self.endpoints)
        return found[1] if found else ""


class _Server(msgspec.Struct):
    state: str


class _Supervised(msgspec.Struct):
    """The supervisor's note about that server."""

    server: _Server


def read_note(state: Path) -> LauncherNote | None:
    """The note in the folder of a server, which may have ended; None: there is none, or it is damaged."""
    try:
        return msgspec.json.decode((state / _RECORD).read_bytes(), type=LauncherNote)
    except (OSError, msgspec.MsgspecError):
        return None


def running_servers(notes: Path) -> Iterator[tuple[Path, LauncherNote]]:
    """Folders and notes of the servers whose launchers run."""
    for record in sorted(notes.glob(f"*/{_RECORD}")):
        note = read_note(record.parent)
        if note is not None and _is_alive(note):
            yield record.parent, note


def find_server(server: str, notes: Path) -> tuple[Path, LauncherNote] | None:
    """Folder and note of the running server with this address (``host:port``)."""
    host, _, port = server.rpartition(":")
    if host not in LOCAL_HOSTS:
        return None
    for state, note in running_servers(notes):
        if note.endpoint("grpc").rpartition(":")[2] == port:
            return state, note
    return None


def noted_state(server: str, notes: Path) -> ServerState:
    """The state of a server of this checkout that does not answer; empty: none has this address.

    Triton listens when its models are loaded; until then, and while it is restarted or stopped, only the
    launcher's notes show that it is there.
    """
    if (found := find_server(server, notes)) is None:
        return ""
    state, note = found
    return "stopping" if note.stopping else _supervised_state(state / _RECORD)


def _supervised_state(record: Path) -> ServerState:
    """The state in the supervisor's note; without one that is newer than the launch, the server loads."""
    supervised = record.with_name("supervisor.json")
    try:
        if supervised.stat().st_mtime_ns < record.stat().st_mtime_ns:
            return "loading"
        noted = msgspec.json.decode(supervised.read_bytes(), type=_Supervised).server.state
    except FileNotFoundError:
        return "loading"
    except (OSError, msgspec.MsgspecError):
        return "lost"
    return "restarting" if noted == "restarting" else "stopping" if noted == "stopped" else "lost"


def _is_alive(noted: LauncherNote) -> bool:
    """Whether it is still that process: one that was killed leaves its note, and its number is used again."""
    try:
        import psutil  # noqa: PLC0415 - comes with the launcher, not with the client
    except ImportError:
        return False
    try:
        started: float = psutil.Process(noted.launcher).create_time()
    except (psutil.Error, ValueError):
        return False
    return abs(started - noted.launcher_started) < _SAME_START_S
