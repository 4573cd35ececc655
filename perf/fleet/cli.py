"""``make fleet``: what a fleet refuses and costs, and the buffer that it needs."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from harness.report import make_table, write_json
from numpy.typing import NDArray
from rich.console import Console

from fleet.demand import Burst, arrivals
from fleet.scaling import ScalingRule
from fleet.simulation import Fleet, FleetResult, simulate
from parley_client.cli.capacity.report import TARGET_UTILIZATION

_SEED = 20
_BURST_AT_S = (5 * 3600, 10 * 3600 + 900, 15 * 3600)
"""In a quiet hour, at the busiest one, and in the afternoon."""
_STEPS = 6
"""Of the search for the buffer, once it is between two values."""


@dataclass(frozen=True)
class Case:
    """One fleet with one rule."""

    fleet: Fleet
    fill: float
    peak: float
    """Calls at the busiest moment of the curve."""
    rate: NDArray[np.float64]
    """Calls that begin in each second."""

    def run(self, buffer: float) -> FleetResult:
        """The same calls with a buffer, as a share of a cell's busiest calls."""
        fleet = self.fleet
        rule = ScalingRule(target=self.fill * fleet.held, buffer=buffer * self.peak / fleet.cells, least=2)
        return simulate(fleet, rule, self.rate, _SEED)


def find_buffer(case: Case, most_refused: float) -> tuple[float, FleetResult] | None:
    """The smallest buffer with which few enough calls are refused; None: the peak once more is too little.

    Args:
        case: the fleet.
        most_refused: share of the calls that want to begin.
    """
    result = case.run(0.0)
    if result.refused_share <= most_refused:
        return 0.0, result
    low, high = 0.0, 1 / 64
    while (result := case.run(high)).refused_share > most_refused:
        low, high = high, 2 * high
        if high > 1:
            return None
    for _ in range(_STEPS):
        middle = (low + high) / 2
        tried = case.run(middle)
        if tried.refused_share > most_refused:
            low = middle
        else:
            high, result = middle, tried
    return high, result


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Simulate a day of a fleet: refused calls, cost, and the buffer that is needed."
    )
    parser.add_argument("--peak", default="1000,10000,100000", help="calls at the busiest moment of the day")
    held = parser.add_mutually_exclusive_group()
    held.add_argument("--held", type=int, default=32, help="calls of a replica (default: %(default)s)")
    held.add_argument("--capacity", type=Path, metavar="FILE", help="take them from `parley capacity --json`")
    parser.add_argument(
        "--fill",
        type=float,
        default=TARGET_UTILIZATION,
        help="target share of them (default: %(default)s, as in the chart)",
    )
    parser.add_argument("--cell", type=int, default=2_500, help="calls of a cell (default: %(default)s)")
    parser.add_argument("--call-s", type=float, default=240.0, help="mean length (default: %(default)s)")
    parser.add_argument("--start-s", type=float, default=300.0, help="of a node with its replica")
    parser.add_argument("--warm-start-s", type=float, default=60.0, help="of a replica on a node that waits")
    parser.add_argument("--warm", type=float, default=0.0, help="nodes that wait, as a share of the replicas")
    parser.add_argument("--burst", type=float, default=1.5, help="times the day's calls, three times a day")
    parser.add_argument("--losses", type=float, default=0.001, help="of a replica, in an hour")
    parser.add_argument(
        "--price-per-hour", type=float, default=2.24, help="of a replica (default: %(default)s)"
    )
    parser.add_argument(
        "--refused", type=float, default=0.001, help="share that may be (default: %(default)s)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to FILE")
    args = parser.parse_args()
    try:
        args.peak = [int(part) for part in args.peak.split(",")]
        if args.capacity:
            args.held = int(json.loads(args.capacity.read_text())["calls_held"])
    except (ValueError, KeyError, TypeError, OSError) as error:
        parser.error(f"--peak or --capacity cannot be read: {error}")
    numbers = (*args.peak, args.held, args.fill, args.cell, args.call_s, args.start_s, args.warm_start_s)
    if min(numbers) <= 0 or min(args.warm, args.losses, args.price_per_hour) < 0 or args.burst < 1:
        parser.error("numbers must be positive, and the burst at least 1")
    return args


def _case(args: argparse.Namespace, peak: int, *, moves: bool) -> Case:
    cells = max(1, math.ceil(peak / args.cell))
    replicas = peak / cells / (args.fill * args.held)
    fleet = Fleet(
        cells=cells,
        held=args.held,
        mean_call_s=args.call_s,
        start_s=args.start_s,
        warm=round(args.warm * replicas),
        warm_start_s=args.warm_start_s,
        moves=moves,
        losses_per_hour=args.losses,
        price_per_hour=args.price_per_hour,
    )
    bursts = tuple(Burst(at_s, args.burst) for at_s in _BURST_AT_S) if args.burst > 1 else ()
    return Case(fleet, args.fill, peak, arrivals(peak, fleet.mean_call_s, bursts))


def main() -> int:
    """Simulate all sizes; the exit status is 1 if no buffer was enough for one of them."""
    args, console = _arguments(), Console()
    table = make_table(
        f"a day, {args.held} calls a replica, filled to {args.fill:.0%}",
        *(
            "peak",
            "cells",
            "calls move",
            "buffer",
            "refused",
            "lost",
            "moved",
            "replicas",
            "fill",
            "a minute",
        ),
        left=0,
    )
    found: list[dict[str, Any]] = []
    enough = True
    for peak in args.peak:
        for moves in (True, False):
            with console.status(f"{peak} calls …"):
                case = _case(args, peak, moves=moves)
                best = find_buffer(case, args.refused)
            row = (f"{peak:,}", str(case.fleet.cells), "yes" if moves else "no")
            if best is None:
                enough = False
                table.add_row(*row, "none is enough")
                continue
            buffer, result = best
            fill = result.held_call_s / (result.replica_s * args.held)
            cost = result.cost_per_call_minute(args.price_per_hour)
            table.add_row(
                *row,
                f"{buffer:.1%}",
                f"{result.refused_share:.3%}",
                f"{result.lost:,}",
                f"{result.moved:,}",
                f"{result.most_replicas:,}",
                f"{fill:.0%}",
                f"{cost:.5f}",
            )
            figures = {key: value for key, value in vars(result).items() if key != "refused_at"}
            found.append(
                {"fleet": asdict(case.fleet), "peak": peak, "buffer": buffer, "cost": cost, **figures}
            )
    console.print(table)
    if args.json:
        write_json(args.json, found)
    return 0 if enough else 1
