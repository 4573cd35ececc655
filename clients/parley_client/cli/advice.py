"""Advice on errors, from what the launchers of this checkout note about their servers."""

from __future__ import annotations

import shlex
from pathlib import Path

from parley.errors import InvalidMessageError, ShuttingDownError, UnsupportedLanguageError
from parley_client.channel import is_unknown_host
from parley_client.cli import PARLEY
from parley_client.cli.launcher_notes import (
    DEFAULT_NAME,
    LOCAL_HOSTS,
    NOTES,
    ServerState,
    find_server,
    noted_state,
)
from parley_client.connection import DEFAULT_SERVER
from parley_client.errors import (
    CallLostError,
    ConnectError,
    NoGrpcError,
    NoServerError,
    ServersRefusedError,
    UnknownHostError,
    WrongPortError,
)

TOOL_TAKEN = "the server has a tool of this name"  # from parley.agent.validation

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
    f"A language needs a voice and a recogniser. In the profile open, {_RECOGNISER}; Kokoro speaks Spanish "
    "(es) and French (fr), espeak also German (de), Dutch (nl), Swedish (sv), Danish (da), Italian (it), "
    "Portuguese (pt) and Polish (pl): `PARLEY_VOICE_AGENT_TTS=hibari,piper,kokoro,espeak make serve` starts "
    "the server with them (docs/how-to.md#a-conversation-in-another-language)."
)
_TRANSCRIBED_LANGUAGES = (
    f"In the profile open, {_RECOGNISER}. Then start the server anew; --model whisper names that one."
)
_DRAINED = (
    f"`{PARLEY} drain --cancel`, on its machine, lets a server of `make serve` take calls again; --name or "
    "--file names another one."
)
_CALL_AGAIN = "The conversation is lost with it; call again."


def advice(error: BaseException, server: str | None, notes: Path = NOTES, *, command: str = "") -> str:
    """One sentence on what to do, or an empty text.

    Args:
        error: what went wrong; its causes count too.
        server: ``host:port`` that was tried; None: none.
        notes: holds what the launchers of this checkout note, a folder for each server.
        command: that failed; empty: one that holds a call.
    """
    if getattr(error, "code", "") == UnsupportedLanguageError.code:
        return _advise_on_language(server, command)
    if isinstance(error, InvalidMessageError) and TOOL_TAKEN in str(error):
        return "Leave the built-in tools out with --no-demo-tools, or rename yours in the file of --tools."
    state = "" if server is None else noted_state(server, notes)
    if isinstance(error, CallLostError) and error.retryable:
        if state in ("restarting", "stopping"):
            return _STATES[state]
        return f"{_CALL_AGAIN} `{command_for('probe', server)}` says whether the models answer."
    if isinstance(error, ConnectError) and error.code == ShuttingDownError.code:
        # Of several servers the error does not say which is drained.
        is_one_of_several = isinstance(error, ServersRefusedError) and len(error.servers) > 1
        drained = None if is_one_of_several else server
        return _STATES["stopping"] if state == "stopping" else _advise_on_drain(drained, notes)
    return _advise_on_connection(error, state)


def command_for(command: str, server: str | None) -> str:
    """A command of ``parley`` as it is written for a server (``host:port``); None: for the default one."""
    option = "" if server in (None, DEFAULT_SERVER) else f" --server {server}"
    return f"{PARLEY} {command}{option}"


def _advise_on_drain(server: str | None, notes: Path) -> str:
    """How the server takes calls again; where its name is not known, with what it is named."""
    found = None if server is None else find_server(server, notes)
    if found is None:
        return _DRAINED
    name = found[0].name
    option = "" if name == DEFAULT_NAME else f" --name {shlex.quote(name)}"
    return f"`{PARLEY} drain --cancel{option}` lets the server take calls again."


def _advise_on_connection(error: BaseException, state: ServerState) -> str:
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
    is_local = server is None or server.rpartition(":")[0] in LOCAL_HOSTS
    if command == "transcribe":
        return _TRANSCRIBED_LANGUAGES if is_local else f"{server} needs a recogniser of this language."
    needs = _LANGUAGES if is_local else f"{server} needs a voice and a recogniser of this language."
    return f"{needs} `{command_for('voices', server)}` lists its voices."


def advice_on_waiting(server: str, problem: str, *, is_connected: bool, notes: Path = NOTES) -> str:
    """What to do about a server that a gateway waits for; ``problem``: why the gateway finds it not ready."""
    if is_connected:
        return _NOT_READY
    if is_unknown_host(problem):
        return _UNKNOWN_HOST
    return _STATES[noted_state(server, notes)] or _START
