"""``parley gateway keys``: API keys for the gateway."""

from __future__ import annotations

import argparse
import fcntl
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, BinaryIO

from rich.console import Console
from rich.markup import escape

from parley_client.cli import PARLEY
from parley_client.cli.output import plain_table
from parley_client.errors import UsageError

if TYPE_CHECKING:
    from parley_gateway.security.principal import Scope

_SCOPES = ("agent", "transcribe", "speak", "chat", "voices", "calls", "dial", "admin")
# How long to wait for a file that another process changes, and how often to look at it meanwhile (seconds).
_LOCK_S = 10.0
_LOOK_S = 0.05
_USUAL: tuple[Scope, ...] = ("agent", "transcribe", "speak", "chat")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``parley gateway keys``."""
    actions = parser.add_subparsers(dest="keys_action", required=True)
    new = actions.add_parser("new", help="make a key: print it once, and the line for the file of keys")
    new.add_argument("--name", default="", help="whose it is, for people")
    new.add_argument(
        "--scope",
        dest="scopes",
        action="append",
        choices=_SCOPES,
        help=f"what it may do; can be given several times (default: {', '.join(_USUAL)})",
    )
    new.add_argument(
        "--agent",
        dest="agents",
        action="append",
        metavar="NAME",
        help="an agent that it may call, '' for the server's own; can be given several times (default: all)",
    )
    new.add_argument("--days", type=_days, metavar="N", help="how long it is valid (default: for ever)")
    listing = actions.add_parser("list", help="the keys of a file, without what is secret")
    revoke = actions.add_parser(
        "revoke", help="take a key out of the file: gateways notice it within seconds"
    )
    revoke.add_argument("key_id", metavar="ID", help="as `list` shows it; or the key itself")
    for action in (listing, revoke):
        action.add_argument(
            "--file",
            type=Path,
            metavar="FILE",
            help="the file of keys (default: security.keys_file of the gateway's settings)",
        )


def run(args: argparse.Namespace, console: Console, default_file: Callable[[], str]) -> int:
    """Make, list or revoke keys.

    The line of a new key goes to standard output, so that it can be appended; the key to standard error.

    Raises:
        UsageError: no file is named, or it has no such key.
        SettingsError: the file cannot be used.
    """
    if args.keys_action == "new":
        _make(args)
        return 0
    named = args.file or default_file()
    if not named:
        raise UsageError("name the file of keys with --file, or as PARLEY_GATEWAY_SECURITY_KEYS_FILE")
    file = Path(named)
    if args.keys_action == "list":
        _list(file, console)
    else:
        _revoke(file, args.key_id, console)
    return 0


def _make(args: argparse.Namespace) -> None:
    from parley_gateway.security.keys import new_key  # noqa: PLC0415 - an optional extra

    expires = None if args.days is None else datetime.now(UTC) + timedelta(days=args.days)
    scopes: Sequence[Scope] = args.scopes or _USUAL
    made = new_key(args.name, scopes, expires, args.agents)
    print(f"The key, which is shown only now: {made.secret}", file=sys.stderr, flush=True)
    print(made.line, flush=True)


def _list(file: Path, console: Console) -> None:
    from parley_gateway.security.keys import read_keys  # noqa: PLC0415 - an optional extra

    table = plain_table("id", "name", "scopes", "agents", "expires")
    now = datetime.now(UTC)
    for key_id, entry in read_keys(_read(file)).items():
        expires = "never" if entry.expires is None else f"{entry.expires:%Y-%m-%d %H:%M}"
        if entry.expires is not None and entry.expires <= now:
            expires += " (has expired)"
        agents = "all" if entry.agents is None else ", ".join(name or "own" for name in sorted(entry.agents))
        table.add_row(key_id, escape(entry.name), ", ".join(sorted(entry.scopes)), agents, expires)
    console.print(table if table.row_count else f"{file} has no keys.")


def _revoke(file: Path, named: str, console: Console) -> None:
    from parley_gateway.errors import GatewaySettingsError  # noqa: PLC0415 - an optional extra
    from parley_gateway.security.keys import id_of, read_keys, without_key  # noqa: PLC0415

    key_id = id_of(named)
    with _locked(file):
        raw = _read(file)
        if key_id not in read_keys(raw):
            raise UsageError(f"{file} has no key {key_id!r}; `{PARLEY} gateway keys list` shows those it has")
        try:
            _replace(file.resolve(), without_key(raw, key_id))
        except OSError as error:
            raise GatewaySettingsError(f"{file}: cannot be written: {error.strerror or error}") from error
    console.print(f"Revoked {key_id}. What is open with it ends within seconds.")


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Keep other commands from changing a file between reading and replacing it.

    Raises:
        SettingsError: it cannot be read, or is not free within :data:`_LOCK_S` seconds.
    """
    from parley_gateway.errors import GatewaySettingsError  # noqa: PLC0415 - an optional extra

    end = monotonic() + _LOCK_S
    while True:
        try:
            held = _try_lock(file)
        except OSError as error:
            raise GatewaySettingsError(f"{file}: cannot be read: {error.strerror or error}") from error
        if held is not None:
            with held:
                yield
            return
        if monotonic() >= end:
            raise GatewaySettingsError(f"{file}: another program is changing it; try again")
        sleep(_LOOK_S)


def _try_lock(file: Path) -> BinaryIO | None:
    """The locked file, which frees it when it is closed; None: another process has it.

    The lock is on the file itself, so that no other file is left beside it. The process that had it before
    has replaced the file: a lock on the old one protects nothing.
    """
    # The locks of NFS need a descriptor that may write.
    opened = file.open("r+b" if os.access(file, os.W_OK) else "rb")
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(opened.fileno()), file.stat()):
            return opened
    except BlockingIOError:
        pass
    except BaseException:
        opened.close()
        raise
    opened.close()
    return None


def _replace(file: Path, content: bytes) -> None:
    """Replace a file as a whole: a gateway that reads meanwhile must not miss the other keys.

    Raises:
        OSError: it cannot be written, or its owner, who could then not read it any more, cannot be set.
    """
    known = file.stat()
    with tempfile.NamedTemporaryFile(dir=file.parent, prefix=f".{file.name}.", delete=False) as fresh:
        try:
            fresh.write(content)
            # What is still in a buffer would be missing from the file that gets the name.
            fresh.flush()
            os.fchown(fresh.fileno(), known.st_uid, known.st_gid)
            os.fchmod(fresh.fileno(), known.st_mode & 0o777)
            os.fsync(fresh.fileno())
            Path(fresh.name).replace(file)
        except BaseException:
            Path(fresh.name).unlink()
            raise


def _read(file: Path) -> bytes:
    from parley_gateway.errors import GatewaySettingsError  # noqa: PLC0415 - an optional extra

    try:
        return file.read_bytes()
    except OSError as error:
        raise GatewaySettingsError(f"{file}: cannot be read: {error.strerror or error}") from error


def _days(text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = 0.0
    if not 0 < days <= 36_500:
        raise argparse.ArgumentTypeError(f"a number of days is expected, not {text!r}")
    return days
