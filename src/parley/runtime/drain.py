"""Draining a server: a file that all of its processes read asks them to take no new sessions.

A request to the server would reach only one of its processes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from parley.errors import InvalidInputError

DRAIN_FILE_VARIABLE = "PARLEY_DRAIN_FILE"
"""Path of the file. Empty: the server cannot be drained."""
SERVER_START_VARIABLE = "PARLEY_SERVER_START"
"""When the server was started (seconds since 1970). The launcher sets it, which may replace Triton."""
DRAIN_FILE = "drain.json"
"""Its name in the state folder of a server that the launcher starts."""
MAX_DEADLINE_S = 24 * 3_600.0
_MAX_BYTES = 4_096
_INTERVAL_S = 0.5
_log = logging.getLogger(__name__)


class DrainRequest(msgspec.Struct, frozen=True):
    """The content of the file (JSON)."""

    deadline_s: float
    """Time that clients have to go on elsewhere, from the moment at which the file was written."""


def ask_to_drain(file: Path, deadline_s: float) -> None:
    """Write the file, as a whole.

    Raises:
        OSError: it cannot be written.
    """
    written = file.with_name(f".{file.name}.{os.getpid()}")
    written.write_bytes(msgspec.json.encode(DrainRequest(deadline_s)))
    written.replace(file)


def cancel_drain(file: Path) -> None:
    """Remove the file; the server accepts sessions again.

    Raises:
        OSError: it cannot be removed.
    """
    file.unlink(missing_ok=True)


def forget_drain(file: Path, started_at: float) -> None:
    """Remove the file if it asked the server before, which had the same folder.

    Args:
        file: written by :func:`ask_to_drain`.
        started_at: when this server's first process was started (seconds since 1970). A file that was written
            since then asks this server, although nothing of it may have run yet.

    Raises:
        OSError: it cannot be removed.
    """
    try:
        written_at = file.stat().st_mtime
    except FileNotFoundError:
        return
    if written_at < started_at:
        file.unlink(missing_ok=True)


def process_start(pid: int) -> float:
    """When a process was started (seconds since 1970, by the wall clock as it is now).

    Raises:
        OSError: there is no such process.
    """
    # The name before them stands in brackets, and may itself have any character.
    ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    if not ticks:  # a kernel that does not say
        return time.time()
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age_s


def read_drain(file: Path) -> tuple[DrainRequest, int] | None:
    """What the file asks, and when it was written (nanoseconds since 1970); None: there is none.

    Raises:
        InvalidInputError: it has another content.
        OSError: it cannot be read.
    """
    try:
        with file.open("rb") as opened:
            raw, written_ns = opened.read(_MAX_BYTES), os.fstat(opened.fileno()).st_mtime_ns
    except FileNotFoundError:
        return None
    try:
        request = msgspec.json.decode(raw, type=DrainRequest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{file} asks for nothing that can be done: {error}") from error
    if not 0.0 <= request.deadline_s <= MAX_DEADLINE_S:
        raise InvalidInputError(
            f"{file}: deadline_s is {request.deadline_s}; it must be 0 to {MAX_DEADLINE_S:g}"
        )
    return request, written_ns


def server_start_ns(environment: Mapping[str, str]) -> int:
    """When the server of this process was started (nanoseconds since 1970).

    Without a launcher that is the start of the parent process, ``tritonserver``: not that of this one, which
    may have replaced another while the server drained.
    """
    if started := environment.get(SERVER_START_VARIABLE):
        return int(float(started) * 1e9)
    try:
        return int(process_start(os.getppid()) * 1e9)
    except OSError:  # this process ends too
        return 0


async def follow_drain(
    file: Path,
    on_drain: Callable[[float], None],
    on_end: Callable[[], None],
    *,
    started_ns: int = 0,
    interval_s: float = _INTERVAL_S,
) -> None:
    """Look at the file for ever.

    A file that cannot be read changes nothing; the log says why, once. One that was written before the server
    was started asked the server before, as where a container was started again on the same volume: it is
    ignored.

    Args:
        file: written by :func:`ask_to_drain`.
        on_drain: called with the seconds that are left, whenever the file was written.
        on_end: called when it was removed.
        started_ns: start of the server (nanoseconds since 1970); compared with the file that is there at
            first only, so that a clock that is set later has no effect.
        interval_s: between two looks.
    """
    asked: tuple[DrainRequest, int] | None = None
    stale_ns = _written_before(file, started_ns)
    reported = ""
    while True:
        try:
            found = read_drain(file)
        except (InvalidInputError, OSError) as error:
            if str(error) != reported:
                reported = str(error)
                _log.warning("the server cannot be drained: %s", reported)
        else:
            reported = ""
            if found is not None and found[1] == stale_ns:
                found = None
            if found is not None and found != asked:
                request, written_ns = found
                passed_s = max(0.0, time.time() - written_ns / 1e9)
                on_drain(max(0.0, request.deadline_s - passed_s))
            elif found is None and asked is not None:
                on_end()
            asked = found
        await asyncio.sleep(interval_s)


def _written_before(file: Path, started_ns: int) -> int | None:
    """When the file was written, if that was before ``started_ns``."""
    try:
        written_ns = file.stat().st_mtime_ns
    except OSError:
        return None
    if written_ns >= started_ns:
        return None
    _log.info("%s is older than this server, and is ignored", file)
    return written_ns
