"""``parley drain``: let the calls of a server go on elsewhere before it is stopped."""

from __future__ import annotations

import argparse
import re
import socket
import time
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse, InvalidURL
from pathlib import Path
from urllib.error import HTTPError, URLError

from rich.console import Console

from parley.runtime.drain import DRAIN_FILE, DRAIN_FILE_VARIABLE, MAX_DEADLINE_S, ask_to_drain, cancel_drain
from parley_client.cli.arguments import address, positive, seconds
from parley_client.cli.launcher_notes import DEFAULT_NAME, NOTES, LauncherNote, read_note, running_servers
from parley_client.errors import ClientError, UsageError

EXAMPLES = """\
  parley drain                     the server of `make serve`: wait until it has no calls
  parley drain --deadline 30 --wait 60
                                   calls have 30 s to go on elsewhere; stop waiting after 60 s
  parley drain --file /run/parley/drain.json --metrics 127.0.0.1:8002
                                   a server whose environment has PARLEY_DRAIN_FILE
  parley drain --file /run/parley/drain.json --wait 1800 --absent-ok
                                   before the end of a pod, whose server may have ended by itself
  parley drain --cancel            accept calls again"""
HELP = "let a server take no new calls, and wait until the open ones have ended or gone on elsewhere"
_DEADLINE_S = 60.0
_METRICS = "127.0.0.1:8002"
_POLL_S = 1.0
"""Longer than two looks of a process at the file."""
_LOOKS = 2
"""In a row at which nothing, or something else, was there: processes of a server that starts have seen the
file by then."""
_UNKNOWN = (
    "; the server was asked, but how many calls it has is not known. Name its page with --metrics HOST:PORT"
)
_PAGE_S = 5.0
"""For each part of a page."""
_PAGE_READ_S = 5.0
"""For all of it after its head."""
_MAX_PAGE_BYTES = 16 << 20
_SAMPLE = re.compile(r"^voice_agent_(active_sessions|draining)\{[^}]*\} (\S+)", re.MULTILINE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--name",
        default=DEFAULT_NAME,
        help="of a server that scripts/serve has started on this machine (default: default)",
    )
    where.add_argument(
        "--file", type=Path, metavar="FILE", help="the server's PARLEY_DRAIN_FILE, in place of --name"
    )
    parser.add_argument(
        "--metrics",
        type=address,
        metavar="HOST:PORT",
        help=f"Triton's metrics page (default: that of --name; with --file {_METRICS})",
    )
    parser.add_argument(
        "--deadline",
        type=positive,
        default=_DEADLINE_S,
        metavar="S",
        help="time that calls have to go on elsewhere (default: %(default)g s)",
    )
    parser.add_argument(
        "--wait", type=seconds, metavar="S", help="stop waiting after this time (default: wait for ever)"
    )
    parser.add_argument(
        "--absent-ok",
        action="store_true",
        help="end with success where nothing ever listened at the metrics page: the server has ended, or has "
        "not begun; wait where another page is there (default with --name, whose server notes its address)",
    )
    parser.add_argument("--cancel", action="store_true", help="accept calls again, and do not wait")


def run(args: argparse.Namespace, console: Console) -> int:
    """Ask, and wait until there are no calls.

    Returns:
        The exit status: 1 if there were calls when the wait was over.

    Raises:
        ClientError: there is no such server, its file cannot be written, or the address of its metrics page
            has no such page.
    """
    if args.deadline > MAX_DEADLINE_S:
        raise UsageError(f"--deadline: at most {MAX_DEADLINE_S:g} s")
    note = None if args.file else read_note(NOTES / args.name)
    file = args.file or _drain_file_of(note, args.name)
    metrics = args.metrics or (_METRICS if args.file else _metrics_of(note, args.name))
    try:
        if args.cancel:
            cancel_drain(file)
            console.print("The server accepts calls again.")
            return 0
        ask_to_drain(file, args.deadline)
    except OSError as error:
        raise ClientError(f"{file} cannot be changed: {error.strerror}") from error
    console.print(f"{metrics} takes no new calls; the others have {args.deadline:g} s to go on elsewhere.")
    is_noted = args.metrics is None and args.file is None
    may_be_absent = args.absent_ok or is_noted
    return 0 if _wait_until_empty(metrics, args.wait, console, may_be_absent=may_be_absent) else 1


def _drain_file_of(note: LauncherNote | None, name: str) -> Path:
    """The file of a server; of one without a note, the usual one."""
    if note is None or note.drain_file is None:
        return NOTES / name / DRAIN_FILE
    if not note.drain_file:
        raise ClientError(f"the server {name!r} cannot be drained: its {DRAIN_FILE_VARIABLE} is empty")
    return Path(note.drain_file)


def _metrics_of(note: LauncherNote | None, name: str) -> str:
    if note is None or not (metrics := note.endpoint("metrics")):
        others = ", ".join(state.name for state, _ in running_servers(NOTES))
        found = f", but with --name: {others}" if others else ""
        raise ClientError(f"no server {name!r} runs here{found}; name its file with --file")
    return metrics


@dataclass(frozen=True)
class _Load:
    """What the metrics page says of all instances of the agent."""

    sessions: int
    draining: bool
    """Whether none of them takes new sessions."""


class _MetricsPage:
    """The page of a server, or what else is at its address."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.line = ""
        """What the last look has found, in words."""
        self.had_agent = False
        """Whether an agent was on the page at any look."""
        self.refusals = 0
        """The last looks, in a row, at which nothing listened."""
        self.strange = 0
        """Those at which something was there, but no page with an agent."""
        # Not through a proxy: the page is on this machine, or one beside it.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def look(self) -> _Load | None:
        """None: there is no page, or no agent on it.

        Raises:
            ClientError: the address has a name of no machine, and never had.
        """
        try:
            with self._opener.open(f"http://{self.address}/metrics", timeout=_PAGE_S) as page:
                load = _read_load(_read_page(page).decode(errors="replace"))
        except (OSError, ValueError, HTTPException) as error:
            if isinstance(error, HTTPError):
                error.close()
            reason = error.reason if type(error) is URLError else error
            if _is_no_host(reason) and not self.had_agent:
                raise ClientError(f"{self.address}: no such host{_UNKNOWN}") from error
            self.refusals = self.refusals + 1 if isinstance(reason, ConnectionRefusedError) else 0
            self.strange = self.strange + 1 if isinstance(reason, HTTPError | HTTPException) else 0
            self.line = _describe_failure(reason, self.address)
            return None
        self.refusals, self.strange = 0, self.strange + 1 if load is None else 0
        self.had_agent = self.had_agent or load is not None
        self.line = _describe(load, self.address)
        return load


def _wait_until_empty(metrics: str, wait_s: float | None, console: Console, *, may_be_absent: bool) -> bool:
    """Whether the server has no calls any more; False: the wait was over before.

    A server whose agent has been on its page once, and which then refuses connections, has ended.

    Raises:
        ClientError: no agent was ever on a page at the address, and that is not to be taken for a server that
            has ended, or one that starts.
    """
    end = None if wait_s is None else time.monotonic() + wait_s
    page, before = _MetricsPage(metrics), ""
    while True:
        load = page.look()
        if page.line != before:
            before = page.line
            console.print(page.line)
        if load is not None and load.draining and not load.sessions:
            return True
        if _LOOKS in (page.refusals, page.strange) and not (page.had_agent or may_be_absent):
            absent = "it may have ended" if page.refusals else "its agent may not be loaded yet"
            raise ClientError(f"{page.line}{_UNKNOWN}, or add --absent-ok if {absent}")
        if page.refusals == _LOOKS:
            console.print("No server runs, and none that starts takes calls.")
            return True
        if end is not None and time.monotonic() + _POLL_S > end:
            return False
        time.sleep(_POLL_S)


def _read_page(page: HTTPResponse) -> bytes:
    """The whole page.

    Raises:
        OSError, HTTPException: it ends too soon, or not in time.
        ValueError: it is too long.
    """
    end, body = time.monotonic() + _PAGE_READ_S, bytearray()
    while block := page.read1(1 << 16):
        body += block
        if len(body) > _MAX_PAGE_BYTES:
            raise ValueError(f"more than {_MAX_PAGE_BYTES} bytes")
        if time.monotonic() > end:
            raise TimeoutError("timed out")
    return bytes(body)


def _is_no_host(reason: object) -> bool:
    """Whether an address has a name that no machine has, or can have."""
    return isinstance(reason, UnicodeError | socket.gaierror | InvalidURL)


def _describe_failure(reason: object, metrics: str) -> str:
    """Why there is no page."""
    if isinstance(reason, HTTPError):
        return f"the page at {metrics} answers with {reason.code} {reason.reason}"
    if isinstance(reason, HTTPException):
        return f"what listens at {metrics} does not speak HTTP ({type(reason).__name__})"
    if isinstance(reason, ConnectionRefusedError):
        return f"nothing listens at {metrics}"
    return f"the page at {metrics} does not answer ({type(reason).__name__})"


def _read_load(page: str) -> _Load | None:
    """None: the page has no agent."""
    samples = [(name, float(value)) for name, value in _SAMPLE.findall(page)]
    if not samples:
        return None
    sessions = sum(value for name, value in samples if name == "active_sessions")
    draining = all(value for name, value in samples if name == "draining")
    return _Load(round(sessions), draining)


def _describe(load: _Load | None, metrics: str) -> str:
    if load is None:
        return f"the page at {metrics} has no sessions of an agent"
    if not load.draining:
        return f"{load.sessions} calls; some processes do not know of it yet"
    return f"{load.sessions} calls" if load.sessions else "No calls are left."
