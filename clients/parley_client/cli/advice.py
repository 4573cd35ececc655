"""Advice on errors, from what the launchers of this checkout note about their servers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from parley.errors import InvalidMessageError, ShuttingDownError, UnsupportedLanguageError
from parley_client.channel import is_unknown_host
from parley_client.cli import CHECKOUT, PARLEY
from parley_client.errors import (
    CallLostError,
    ConnectError,
    NoGrpcError,
    NoServerError,
    UnknownHostError,
    WrongPortError,
)

_STATE = CHECKOUT / ".server"
_TAKEN = "the server has a tool of this name"  # from parley.agent.validation
_SAME_START_S = 1.0
_LOCAL = ("127.0.0.1", "localhost", "[::1]", "0.0.0.0")  # noqa: S104 - compared, not listened on

_STATES = {
    "": "",
    "loading": "The server there is still loading its models; try again in a while.",
    "restarting": "The server there has failed and is being started again; try again in a while.",
    "stopping": "The server there is being stopped.",
    "lost": "The server there does not answer, but its launcher runs; try again in a while.",
}
_START = "Start a server with `make serve`, or name a running one with --server HOST:PORT."
_NOT_READY = "It answers: its models are loading, or are being started again; wait a while."
_UNKNOWN_HOST = (
    "Look at the name in --server HOST:PORT: this machine cannot find it. A server of this machine is "
    "127.0.0.1:8001."
)
_RECOGNISER = "`make fetch MODEL=whisper-base` brings a recogniser of 99 languages"
_LANGUAGES = (
    "A language needs a voice and a recogniser. In the profile open, `make fetch MODEL=kokoro-82m` brings "
    f"voices of Spanish and French, {_RECOGNISER}. Then start "
    "the server anew (docs/how-to.md#a-conversation-in-spanish-or-french). "
    f"`{PARLEY} voices` lists its voices."
)
_TRANSCRIBED_LANGUAGES = (
    f"In the profile open, {_RECOGNISER}. Then start the server anew; --model whisper names that one."
)
_DRAINED = f"`{PARLEY} drain --cancel` lets a server of `make serve` take calls again."
_CALL_AGAIN = (
    f"The conversation is lost with it; call again. `{PARLEY} probe` says whether the models answer."
)


class _Record(msgspec.Struct):
    """The launcher's note about the server that it runs."""

    launcher: int
    launcher_started: float
    """Start of the launcher in the system's clock (seconds)."""
    endpoints: str
    stopping: bool = False


class _Server(msgspec.Struct):
    state: str


class _Supervised(msgspec.Struct):
    """The supervisor's note about that server."""

    server: _Server


_State: TypeAlias = Literal["", "loading", "restarting", "stopping", "lost"]


def advice(error: BaseException, server: str | None, notes: Path = _STATE, *, command: str = "") -> str:
    """One sentence on what to do, or an empty text.

    Args:
        error: what went wrong; its causes count too.
        server: ``host:port`` that was tried; None: none.
        notes: holds what the launchers of this checkout note, a folder for each server.
        command: that failed; empty: one that holds a call.
    """
    if getattr(error, "code", "") == UnsupportedLanguageError.code:
        return _advise_on_language(server, command)
    if isinstance(error, InvalidMessageError) and _TAKEN in str(error):
        return "Leave the built-in tools out with --no-demo-tools, or rename yours in the file of --tools."
    state = "" if server is None else noted_state(server, notes)
    if isinstance(error, CallLostError) and error.retryable:
        return _STATES[state] if state in ("restarting", "stopping") else _CALL_AGAIN
    if isinstance(error, ConnectError) and error.code == ShuttingDownError.code:
        return _STATES["stopping"] if state == "stopping" else _DRAINED
    return _advise_on_connection(error, state)


def _advise_on_connection(error: BaseException, state: _State) -> str:
    """What to do where no server was reached; empty: one was."""
    while not isinstance(error, NoServerError | NoGrpcError | WrongPortError):
        if error.__cause__ is None:
            return ""
        error = error.__cause__
    if not isinstance(error, NoServerError):
        return "Name Triton's gRPC port with --server HOST:PORT; the line of `make serve` says which it is."
    return _UNKNOWN_HOST if isinstance(error, UnknownHostError) else _STATES[state] or _START


def _advise_on_language(server: str | None, command: str) -> str:
    """What the server lacks, and how one of this machine gets it."""
    if command == "voices":
        return ""  # a voice that is enrolled needs neither another voice nor a recogniser
    is_local = server is None or server.rpartition(":")[0] in _LOCAL
    if command == "transcribe":
        return _TRANSCRIBED_LANGUAGES if is_local else f"{server} needs a recogniser of this language."
    if is_local:
        return _LANGUAGES
    needs = f"{server} needs a voice and a recogniser of this language."
    return f"{needs} `{PARLEY} voices --server {server}` lists its voices."


def advice_on_waiting(server: str, problem: str, *, is_connected: bool, notes: Path = _STATE) -> str:
    """What to do about a server that a gateway waits for; ``problem``: why the gateway finds it not ready."""
    if is_connected:
        return _NOT_READY
    if is_unknown_host(problem):
        return _UNKNOWN_HOST
    return _STATES[noted_state(server, notes)] or _START


def noted_state(server: str, notes: Path) -> _State:
    """The state of a server of this checkout that does not answer; empty: none has this address.

    Triton listens when its models are loaded; until then, and while it is restarted or stopped, only the
    launcher's notes show that it is there.
    """
    for record in notes.glob("*/server.json"):
        if (noted := _read_for(server, record)) is not None:
            return "stopping" if noted.stopping else _supervised_state(record)
    return ""


def _supervised_state(record: Path) -> _State:
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


def _read_for(server: str, record: Path) -> _Record | None:
    """A launcher's note; None unless it runs, and its server has this address."""
    try:
        noted = msgspec.json.decode(record.read_bytes(), type=_Record)
    except (OSError, msgspec.MsgspecError):
        return None
    if not _is_alive(noted):
        return None
    endpoint = re.search(r"grpc=(\S+)", noted.endpoints)
    host, _, port = server.rpartition(":")
    is_there = endpoint is not None and endpoint[1].rpartition(":")[2] == port and host in _LOCAL
    return noted if is_there else None


def _is_alive(noted: _Record) -> bool:
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
