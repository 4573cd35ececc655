"""``parley models``: what a profile's models are, and whether their weights are here."""

from __future__ import annotations

import argparse
import subprocess

from rich.console import Console

from parley_client.cli import CHECKOUT
from parley_client.cli.own_server import add_profile, default_profile
from parley_client.errors import ClientError

HELP = "list a profile's models: what they are, licences, sizes, and whether their weights are here"
EXAMPLES = """\
  parley models --profile open             what it needs, and what of it is here
  parley models --profile open --verify    read every file again, and compare it with its checksum
  parley models --advise                   which language model answers in time here (stop the server before)
"""
_PROGRAM = CHECKOUT / "scripts" / "fetch_models"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    add_profile(parser, "of the model repository (default: that of `make serve`)")
    parser.add_argument(
        "--verify", action="store_true", help="read every file anew and compare it with its checksum"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per model")
    parser.add_argument(
        "--advise",
        action="store_true",
        help="load each known language model that is here, and say which answers in time on this machine",
    )


def run(args: argparse.Namespace, _console: Console) -> int:
    """Show the list that the program for fetching weights prints.

    Returns:
        1 if something is not there.

    Raises:
        ClientError: there is no checkout with that program.
    """
    if not _PROGRAM.exists():
        raise ClientError("the list of models is part of the repository: run this in a checkout of it")
    if args.advise:
        python, flag = CHECKOUT / ".venv" / "bin" / "python", ["--json"] * args.json
        return subprocess.run([python, "-m", "parley.launcher.advice", *flag], check=False).returncode
    profile = args.profile or default_profile()
    flags = [flag for flag, given in (("--verify", args.verify), ("--json", args.json)) if given]
    return subprocess.run([_PROGRAM, "--status", "--profile", profile, *flags], check=False).returncode
