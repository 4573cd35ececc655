"""What a person can do about an error."""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec

from parley.errors import InvalidMessageError
from parley_client.errors import NoServerError

CHECKOUT = Path(__file__).resolve().parents[3]
"""Where this file lies in a checkout; anywhere, if the client is installed."""
_STATE = CHECKOUT / ".server"
_TAKEN = "the server has a tool of this name"  # as parley.agent.validation says it
_LOCAL = ("127.0.0.1", "localhost", "[::1]", "0.0.0.0")  # noqa: S104 - compared, not listened on


class _Record(msgspec.Struct):
    """What the launcher notes of the server that it runs."""

    launcher: int
    endpoints: str


def advice(error: BaseException, server: str | None) -> str:
    """One sentence on what to do, or nothing.

    Args:
        error: what went wrong; its causes count too.
        server: ``host:port`` that was tried; None: none.
    """
    if isinstance(error, InvalidMessageError) and _TAKEN in str(error):
        return "Leave the built-in tools out with --no-demo-tools, or rename yours in the file of --tools."
    while not isinstance(error, NoServerError):
        if error.__cause__ is None:
            return ""
        error = error.__cause__
    if server is not None and is_starting(server):
        return "The server there is still loading its models; try again in a while."
    return "Start a server with `make serve`, or name a running one with --server HOST:PORT."


def is_starting(server: str, state: Path = _STATE) -> bool:
    """Whether a server of this checkout was started for this address.

    Triton listens when its models are loaded; until then only the launcher's note tells of it.

    Args:
        server: ``host:port``, where nothing answers.
        state: holds a folder for each server.
    """
    return any(_is_for(server, record) for record in state.glob("*/server.json"))


def _is_for(server: str, record: Path) -> bool:
    try:
        noted = msgspec.json.decode(record.read_bytes(), type=_Record)
        os.kill(noted.launcher, 0)
    except (OSError, msgspec.MsgspecError):
        return False
    endpoint = re.search(r"grpc=(\S+)", noted.endpoints)
    host, _, port = server.rpartition(":")
    return endpoint is not None and endpoint[1].rpartition(":")[2] == port and host in _LOCAL
