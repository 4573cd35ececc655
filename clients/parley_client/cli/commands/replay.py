"""``parley replay``: play a recorded call again, without a server."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from rich.console import Console

from parley.replay.call_log import CallLogError
from parley.replay.comparison import UnknownSettingError, replay
from parley_client.errors import UsageError

EXAMPLES = """\
  parley replay records/20261130-101500-0123456789abcdef.call
                                   the agent does the same as then, or this is what differs
  parley replay FILE.call --with turn.eagerness=patient --with llm_deadline_s=5
                                   what would have been otherwise with these settings"""
HELP = "play a call again that a server has recorded as a whole"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    parser.epilog = (
        "A server records calls where its setting record_debug names a folder (parley run --record-debug).\n"
        "Exit status: 0 nothing differs, 1 something does, 2 the file or a setting cannot be used."
    )
    parser.add_argument("call", type=Path, metavar="FILE", help="the recorded call")
    parser.add_argument(
        "--with",
        dest="changes",
        action="append",
        default=[],
        metavar="SETTING=VALUE",
        help="change an option of the session (docs/protocol.md) or a setting of the agent; repeatable",
    )


def run(args: argparse.Namespace, console: Console) -> int:
    """Play the call; prints what differs.

    Raises:
        UsageError: the file or a setting cannot be used.
    """
    logging.getLogger("parley").setLevel(logging.CRITICAL)  # the call has logged it all when it was recorded
    try:
        played = replay(args.call, args.changes)
    except (CallLogError, UnknownSettingError, OSError) as error:
        raise UsageError(f"{args.call}: {error}") from error

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    for one in played.differences:
        say(f"{one.at_s:8.2f} s  {one.what}: {one.before or 'nothing'} -> {one.after or 'nothing'}")
    if played.unanswered is not None:
        at_s, kind = played.unanswered
        say(f"{at_s:8.2f} s  the agent asked ({kind}) something that the recording has no answer to")
    if played.ended_early:
        say(f"{played.length_s:8.2f} s  the recording ends before the call does: {played.ended_early}")
    differs = bool(played.differences) or played.unanswered is not None
    count = len(played.differences)
    say(f"{played.length_s:.1f} s of a call, {played.steps} steps: {count or 'no'} differences")
    return int(differs)
