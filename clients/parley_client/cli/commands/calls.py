"""``parley calls``: the calls that a server has recorded, on its own machine."""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path

import msgspec
from rich.console import Console
from rich.markup import escape

from parley.calls.database import CallInfo
from parley.calls.folder import DEFAULT_FOLDER, EVENTS, open_calls
from parley.calls.transcripts import printable, read_transcript
from parley_client.cli import CHECKOUT
from parley_client.cli.arguments import count
from parley_client.cli.output import plain_table
from parley_client.errors import UsageError

EXAMPLES = """\
  parley calls list --agent restaurant           the newest calls of an agent that has `record = true`
  parley calls show 20260504-120000-0f3a9c2b7e0d4411
                                                 what was said and done
  parley calls export 20260504-120000-0f3a9c2b7e0d4411 --out call
                                                 its audio and events, as files of a new folder
  parley calls delete 20260504-120000-0f3a9c2b7e0d4411"""
_FOLDER = "PARLEY_VOICE_AGENT_CALLS"
HELP = "list, show, export and delete the calls that a server has recorded"


def own_calls() -> Path:
    """Where a server that is started from this checkout records calls."""
    return CHECKOUT / (os.environ.get(_FOLDER) or DEFAULT_FOLDER)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="the calls, newest first")
    listing.add_argument("--agent", default="", metavar="NAME", help="of this agent only")
    listing.add_argument("--limit", type=count, default=50, metavar="N", help="so many (default: 50)")
    listing.add_argument("--json", action="store_true", help="print one JSON object per call")
    show = actions.add_parser("show", help="what was said and done in a call")
    export = actions.add_parser("export", help="copy the files of a call")
    export.add_argument(
        "--out", type=Path, required=True, metavar="FOLDER", help="is made, and must not exist"
    )
    delete = actions.add_parser("delete", help="delete calls, with their files")
    for action in (show, export):
        action.add_argument("id", metavar="ID", help="as `list` shows it")
    delete.add_argument("id", nargs="+", metavar="ID", help="as `list` shows it")
    for action in (listing, show, export, delete):
        action.add_argument(
            "--folder",
            type=Path,
            default=own_calls(),
            help=f"voice_agent's `calls` (default: {_FOLDER}, else {DEFAULT_FOLDER} in the checkout)",
        )


def run(args: argparse.Namespace, console: Console) -> int:
    """Do it.

    Raises:
        CallNotFoundError: there is no such call, or its files are not here.
        ModelLoadingError: the settings of the store and the list cannot be used.
        UsageError: the folder, the store or the list has failed.
    """
    folder = open_calls(args.folder)
    try:
        match args.action:
            case "list":
                _list(folder.entries.newest(args.agent, args.limit), console, as_json=args.json)
            case "show":
                with folder.open(args.id, name=EVENTS) as (info, files):
                    _show(info, files, console)
            case "export":
                with folder.open(args.id) as (_, files):
                    shutil.copytree(files, args.out, ignore=shutil.ignore_patterns(".*"))
                console.print(f"Written: {args.out}", markup=False, highlight=False)
            case _:
                for entry in args.id:
                    folder.delete(entry)
                    console.print(f"Deleted: {entry}", markup=False, highlight=False)
    except OSError as error:
        raise UsageError(f"{error.filename or args.folder}: {error.strerror or error}") from error
    return 0


def _list(calls: list[CallInfo], console: Console, *, as_json: bool) -> None:
    if as_json:
        for one in calls:
            print(msgspec.json.encode(one).decode())
        return
    head = ("id", "agent", "started (UTC)", "s", "turns", "ended by", "incomplete")
    table = plain_table(*head, right=("s", "turns"))
    for one in calls:
        length = f"{one.duration_ms / 1000:.0f}" if one.ended else ""
        reason = one.reason or "goes on, or was lost"
        cells = (one.id, one.agent, one.started[:19], length, str(one.turns), reason, one.incomplete)
        table.add_row(*map(escape, cells))
    console.print(table if calls else "No calls are recorded here.")


def _show(info: CallInfo, folder: Path, console: Console) -> None:
    for name, value in msgspec.to_builtins(info).items():
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        console.print(f"{name}: {printable(text)}", markup=False, highlight=False, soft_wrap=True)
    transcript = read_transcript(folder)
    if transcript.median_answer_ms is not None:
        console.print(f"median_answer_ms: {transcript.median_answer_ms}", markup=False, highlight=False)
    for line in transcript.lines:
        at = f"{line.at_ms // 60_000:02}:{line.at_ms / 1000 % 60:04.1f}"
        console.print(f"{at}  {printable(line.text)}", markup=False, highlight=False, soft_wrap=True)
