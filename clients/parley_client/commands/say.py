"""``parley say``: speak audio files to the agent in real time."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from parley_client.commands.common import add_pacing, add_server, positive
from parley_client.commands.play import play
from parley_client.commands.session import add_session
from parley_client.conversation import DEFAULT_TURN_TIMEOUT_S
from parley_client.errors import UsageError
from parley_client.script import load_script, script_of_files

EXAMPLES = """\
  parley say tests/data/open_conversation/02-weather.wav
                                   one turn, and the agent's answer
  parley say question.wav stop.wav --barge-in-after 1500
                                   the second file speaks over the answer to the first
  parley say question.wav --no-demo-tools --system-prompt "You are Bob of Bob's tea shop." --out call.wav
                                   another prompt; both sides in a WAV file"""
HELP = "speak audio files to the agent, at the pace of a person"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    parser.add_argument(
        "files", nargs="*", type=Path, metavar="FILE", help="WAV, FLAC, OGG or MP3; one per turn"
    )
    parser.add_argument(
        "--script", type=Path, metavar="FILE.toml", help="a conversation script instead of files"
    )
    parser.add_argument(
        "--barge-in-after",
        type=int,
        metavar="MS",
        help="every further file speaks over the answer, this long after it began to be heard",
    )
    parser.add_argument(
        "--turn-timeout",
        type=positive,
        default=DEFAULT_TURN_TIMEOUT_S,
        metavar="S",
        help="longest wait for an answer (default: %(default)s s)",
    )
    parser.add_argument(
        "--out", type=Path, metavar="CALL.wav", help="write the call: you left, the agent right"
    )
    parser.add_argument("--verbose", action="store_true", help="say what each measured latency means")
    add_pacing(parser)
    add_server(parser)
    add_session(parser)


async def run(args: argparse.Namespace, console: Console) -> int:
    """Speak the files.

    Raises:
        UsageError: there is nothing to speak, or two things.
        ParleyError: a file cannot be read, or the call failed.
    """
    if bool(args.files) == bool(args.script):
        raise UsageError("give either audio files or --script FILE.toml")
    if args.script and args.barge_in_after is not None:
        raise UsageError("--barge-in-after is for files; a script has its own")
    script = load_script(args.script) if args.script else script_of_files(args.files, args.barge_in_after)
    return await play(args, console, script, args.out)
