"""``parley replay``: play recorded calls again, without a server."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from rich.console import Console

from parley.replay.call_log import CallLogError
from parley.replay.comparison import replay
from parley_client.cli.output import print_error, printable

EXAMPLES = """\
  parley replay records/20261130-101500-0123456789abcdef.call
                                   print what the agent does otherwise than in the recording
  parley replay FILE.call --with turn.eagerness=patient --with llm_deadline_s=5
                                   the same with other settings"""
HELP = "play calls again that a server has recorded as a whole"
_DIFFERS = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    parser.epilog = (
        "A server records calls where its setting record_debug names a folder (parley run --record-debug).\n"
        "Lines with - are of the recorded call, those with + of the one that is played now.\n"
        "Exit status: 0 nothing differs, 3 something does, 1 a call cannot be played."
    )
    parser.add_argument("calls", type=Path, nargs="+", metavar="FILE", help="a recorded call")
    parser.add_argument(
        "--with",
        dest="changes",
        action="append",
        default=[],
        metavar="SETTING=VALUE",
        help="change an option of the session (docs/protocol.md) or a setting of the agent; repeatable",
    )


def run(args: argparse.Namespace, console: Console) -> int:
    """Play the calls; prints what differs, and which files cannot be used.

    Raises:
        InvalidInputError: a setting cannot be changed so.
    """

    def say(text: str) -> None:
        console.print(printable(text), markup=False, highlight=False, soft_wrap=True)

    played_calls, differ, length_s, began = 0, 0, 0.0, time.monotonic()
    for file in args.calls:
        try:
            played = replay(file, args.changes)
        except (OSError, CallLogError) as error:
            print_error(str(error), getattr(error, "code", CallLogError.code), "")
            continue
        happenings = [(one, "-") for one in played.gone] + [(one, "+") for one in played.new]
        for (at_s, what, text), sign in sorted(happenings):
            say(f"{sign} {at_s:8.2f} s  {what}: {text}")
        if played.unanswered is not None:
            at_s, kind = played.unanswered
            say(f"  {at_s:8.2f} s  no recorded reply to this request; not compared further: {kind}")
        if played.compared_s is not None:
            say(f"  {played.compared_s:8.2f} s  too much differs; not compared further")
        if played.ended_early:
            say(f"  {played.length_s:8.2f} s  the recording ends before the call does: {played.ended_early}")
        how = "differs" if played.differs else "the same"
        say(f"{file}: {played.session}, {played.length_s:.1f} s, {how}")
        played_calls += 1
        differ += played.differs
        length_s += played.length_s
    took_s = time.monotonic() - began
    say(f"{played_calls} calls of {length_s:.0f} s were played in {took_s:.1f} s: {differ} differ")
    if played_calls < len(args.calls):
        return 1
    return _DIFFERS if differ else 0
