"""``parley turns``: settings of turn-taking, chosen by recorded calls."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from parley.agents.reader import read_agent
from parley.calls.database import CallInfo
from parley.calls.folder import EVENTS, INFO
from parley.calls.pauses import read_pauses, score_pauses
from parley.errors import WeightsNotFoundError
from parley.protocol import TurnOptions
from parley.turns.settings import PRESETS, TurnSettings, choose_settings
from parley.turns.smart_turn import SmartTurn, bundled_folder, network_file
from parley.turns.sweep import (
    NUMBERS,
    LabelledPause,
    OperatingPoint,
    TooFewPausesError,
    measure_settings,
    sweep_settings,
)
from parley_client.agent_registration import to_toml
from parley_client.cli.output import plain_table
from parley_client.errors import UsageError

EXAMPLES = """\
  parley turns tune calls --cut-offs 5%          what their pauses say, and a section [turn] to paste
  parley turns tune calls --agent agents/restaurant.toml
                                                 of this agent's calls, beside its own settings"""
HELP = "choose when a pause ends the user's turn, by recorded calls"
FEWEST = 20
"""Holds, and ends, that settings are chosen by; fewer say too little."""
_ROWS = 12
_AT_ONCE = TurnSettings(threshold=0.5, complete_ms=0, incomplete_ms=0, unfinished_ms=0, limit_ms=0)
"""Every pause ends the turn."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    tune = actions.add_parser("tune", help="label the pauses of recorded calls, and choose settings by them")
    tune.add_argument(
        "calls", type=Path, metavar="FOLDER", help="of recorded calls, or of one that was exported"
    )
    tune.add_argument(
        "--cut-offs",
        type=_share,
        default=0.05,
        metavar="P%",
        help="share of the pauses after which callers go on that may be taken for the end (default: 5%%)",
    )
    tune.add_argument(
        "--agent", type=Path, metavar="FILE.toml", help="take this agent's calls and settings only"
    )
    tune.add_argument(
        "--weights",
        type=Path,
        metavar="FOLDER",
        help="of the end-of-turn network (default: that of the package pipecat-ai, as in the profile open)",
    )


def run(args: argparse.Namespace, console: Console) -> int:
    """Do it; the status is 1 if no settings keep the asked share.

    Raises:
        UsageError: the folder has no calls that can be read.
        TooFewPausesError: too few pauses were found.
        InvalidAudioError: the audio of a call is none of a recorded call.
        WeightsNotFoundError: the folder of weights has no network.
        ModelLoadingError: the file of the agent, or the network, cannot be used.
    """
    agent = read_agent(args.agent) if args.agent else None
    turn = agent.definition.turn if agent else TurnOptions()
    before = choose_settings(turn, "normal") or _AT_ONCE
    pauses = _collect(args, console, agent.name if agent else "")
    frontier = sweep_settings(pauses, PRESETS["normal"] if before == _AT_ONCE else before)
    shown = frontier.points[:: max(1, len(frontier.points) // _ROWS)]
    chosen = frontier.at(args.cut_offs)
    now = measure_settings(pauses, before)
    _print_points(console, [*shown, frontier.points[-1]] if frontier.points[-1] not in shown else shown)
    console.print(f"\nbefore: {_describe(now)}", highlight=False)
    if chosen is None:
        fewest = frontier.points[-1]
        console.print(f"No settings keep {args.cut_offs:.1%}: the fewest are {fewest.cut_offs:.1%}.")
        return 1
    console.print(f"after:  {_describe(chosen)}\n", highlight=False)
    numbers: dict[str, Any] = {name: getattr(chosen.policy, name) for name in NUMBERS}
    if turn.eagerness == "off":
        numbers["eagerness"] = "normal"
    console.print(f"[turn]\n{to_toml(numbers)}", markup=False, highlight=False, end="")
    return 0


def _collect(args: argparse.Namespace, console: Console, agent: str) -> list[LabelledPause]:
    """The pauses of the calls, scored."""
    from parley.runtime.onnx import open_session  # noqa: PLC0415 - other commands need no ONNX Runtime

    network: SmartTurn | None = None
    scored_by = "the calls themselves"
    try:
        path = network_file(args.weights or bundled_folder())
        network, scored_by = SmartTurn(open_session(path)), path.name
    except WeightsNotFoundError:
        if args.weights:
            raise
    try:
        folders = [args.calls] if (args.calls / EVENTS).exists() else sorted(args.calls.iterdir())
        pauses: list[LabelledPause] = []
        calls = 0
        for folder in folders:
            if not (folder / EVENTS).exists() or not (folder / INFO).exists():
                continue  # the call goes on, or this is none
            info = msgspec.json.decode((folder / INFO).read_bytes(), type=CallInfo)
            if agent and info.agent != agent:
                continue
            found = read_pauses(folder, info.language.partition("-")[0])
            pauses += score_pauses(folder, found, network) if network else [one.pause for one in found]
            calls += 1
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"{args.calls}: calls cannot be read: {error}") from error
    if not calls:
        of_agent = f" of the agent {agent!r}" if agent else ""
        raise UsageError(f"{args.calls}: there is no recorded call{of_agent} that has ended")
    ends = sum(one.is_end for one in pauses)
    console.print(
        f"{calls} calls: {len(pauses) - ends} pauses after which the caller went on, {ends} after which not; "
        f"scored by {scored_by}",
        highlight=False,
    )
    if min(ends, len(pauses) - ends) < FEWEST:
        raise TooFewPausesError(f"at least {FEWEST} of each are needed to choose settings by")
    return pauses


def _print_points(console: Console, points: Sequence[OperatingPoint[TurnSettings]]) -> None:
    table = plain_table("cut off", "mean delay", *NUMBERS, right=("cut off", "mean delay", *NUMBERS))
    for one in points:
        numbers = (f"{getattr(one.policy, name):g}" for name in NUMBERS)
        table.add_row(f"{one.cut_offs:.1%}", f"{one.delay_ms:.0f} ms", *numbers)
    console.print(table)


def _describe(point: OperatingPoint[TurnSettings]) -> str:
    return (
        f"{point.cut_offs:.1%} cut off, {point.delay_ms:.0f} ms from the end of speech to the decision (mean)"
    )


def _share(text: str) -> float:
    number = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    if not 0 <= number < 1:
        raise argparse.ArgumentTypeError(f"a share such as 5% or 0.05 expected, not {text!r}")
    return number


_share.__name__ = "share"
