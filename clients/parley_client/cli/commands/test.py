"""``parley test``: hold the scenarios of an agent, and check what it does."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from parley_client.cli.arguments import address, count, within
from parley_client.cli.own_server import profile_name
from parley_client.errors import UsageError
from parley_testing.scenario import MOST_LOSS, Background
from parley_testing.sounds import LOOPS

HELP = "hold the scenarios of an agent, as text or as speech, and check what it does"
EXAMPLES = """\
  parley test agents/restaurant.toml               the scenarios in agents/restaurant.tests.toml, as text
  parley test agents/*.toml --repeat 5 --pass-rate 0.8 --junit out/junit.xml --html out/report.html
                                                   five calls of each, of which four have to pass, for CI
  parley test agents/restaurant.toml --speech --telephone --noise street:15 --loss 3
                                                   as speech, over a bad line
  parley test agents/restaurant.toml --server 127.0.0.1:8001 --scenario parking --show
                                                   one scenario with a running server, in detail"""
_EPILOG = """\
Scenarios are in NAME.tests.toml beside NAME.toml, or in files of the folder NAME.tests;
clients/parley_testing/README.md describes them. Personas and judges are models behind OpenAI's
chat completions; the variables PARLEY_PERSONA_KEY and PARLEY_JUDGE_KEY have their keys.

exit status: 0 every scenario passed as often as --pass-rate asks, 1 one did not, 2 wrong usage or scenario"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    parser.epilog = _EPILOG
    add = parser.add_argument
    add("agents", nargs="+", type=Path, metavar="AGENT.toml", help="files of agents, all in one folder")
    add("--scenarios", type=Path, nargs="+", metavar="PATH", help="other files or folders of scenarios")
    add(
        "--scenario",
        action="append",
        default=[],
        metavar="TEXT",
        help="only those with TEXT in title or tags",
    )
    add("--list", action="store_true", help="print the scenarios and stop")
    add("--repeat", type=_positive, default=1, metavar="N", help="calls of each scenario (default: 1)")
    add(
        "--pass-rate",
        type=within(0.0, 1.0),
        default=1.0,
        metavar="X",
        help="share of the calls of each scenario that has to pass, 0-1 (default: 1)",
    )
    add("--parallel", type=_positive, default=4, metavar="N", help="calls at once (default: 4)")
    add("--junit", type=Path, metavar="FILE.xml", help="write a report for CI")
    add("--html", type=Path, metavar="FILE.html", help="write a report with all transcripts")
    add("--show", action="store_true", help="print what happens in every call")
    server = parser.add_argument_group("server")
    server.add_argument(
        "--server",
        type=address,
        metavar="HOST:PORT",
        help="a running one that has the agents (default: starts one)",
    )
    server.add_argument(
        "--profile",
        type=profile_name,
        metavar="NAME",
        help="of the server that is started, and of the callers",
    )
    _add_speech(parser)
    for role, what in (("persona", "callers of scenarios with a persona"), ("judge", "criteria of `judge`")):
        group = parser.add_argument_group(f"model of {what}")
        group.add_argument(f"--{role}-url", metavar="URL", help="such as https://api.example.com/v1")
        group.add_argument(f"--{role}-model", metavar="NAME", help="its name there")


def _add_speech(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("as speech")
    kind = group.add_mutually_exclusive_group()
    kind.add_argument("--text", action="store_true", help="callers type (default)")
    kind.add_argument("--speech", action="store_true", help="callers speak, in real time")
    group.add_argument(
        "--voice", action="append", default=[], metavar="NAME", help="of the callers, in turn; repeatable"
    )
    group.add_argument(
        "--noise", type=_noise, metavar="SOUND:DB", help="behind the callers, and how far below"
    )
    group.add_argument("--telephone", action="store_true", help="G.711 at 8 kHz")
    group.add_argument(
        "--loss",
        type=within(0.0, 100 * MOST_LOSS),
        default=0.0,
        metavar="PERCENT",
        help="packets that are lost",
    )


def run(args: argparse.Namespace, console: Console) -> int:
    """Hold the scenarios.

    Raises:
        UsageError: an agent, a scenario or an option cannot be used.
        ParleyError: the server cannot start.
    """
    if not args.speech and (args.voice or args.noise or args.telephone or args.loss):
        raise UsageError("--voice, --noise, --telephone and --loss need --speech")
    from parley_testing.command import run_tests  # noqa: PLC0415 - heavy, for the one command that needs it

    return run_tests(args, console)


def _positive(text: str) -> int:
    if (number := count(text)) < 1:
        raise argparse.ArgumentTypeError("at least 1 expected")
    return number


def _noise(text: str) -> Background:
    sound, _, level = text.partition(":")
    try:
        background = Background(sound, float(level or Background(sound).snr_db))
    except ValueError:
        background = Background("")
    if background.sound not in LOOPS:
        raise argparse.ArgumentTypeError(
            f"SOUND:DB expected, with one of {', '.join(sorted(LOOPS))}, not {text!r}"
        )
    return background
