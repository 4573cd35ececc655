"""How fast what dies is replaced, and what callers lose by it: ``make bench-recovery``.

A server of its own, and calls that ask one question after the other. Each model's process is killed
(SIGKILL) and then stopped (SIGSTOP) under them. For each is measured: how soon the supervisor noticed, how
soon the model answered its canary again, how soon every caller had an answer to a question asked after the
signal, and what was lost: calls of others (which must be none), calls of the instance itself (``voice_agent``
only), and turns without an answer.

On a small machine callers and server share the processors, and so does the model that is loaded.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from chaos.callers import Caller, Loss, Turn, calling, first_answer, until_all_answered
from harness.report import make_table
from rich.console import Console

from parley.launcher import EmbeddedServer
from parley.launcher.options import ROOT
from parley.launcher.processes import find_stubs
from parley.protocol import TurnOptions
from parley_client import Backoff, connect
from parley_client.audio.files import read_speech
from parley_client.cli.demo_tools import DEMO_TOOLS
from parley_client.cli.own_server import own_server
from parley_client.cli.view import make_console
from parley_client.errors import ClientError

QUESTION = ROOT / "tests/data/conversation/08-time.wav"
_OPENING = Backoff(attempts=8)

_SIGNALS = {"KILL": signal.SIGKILL, "STOP": signal.SIGSTOP}
_LOOK_S = 0.1
_HEADINGS = (
    "model",
    "signal",
    "noticed",
    "serves again",
    "all answered again",
    "lost: calls of others",
    "calls of its own",
    "turns",
)


def make_callers(address: str, numbers: Iterable[int]) -> list[Caller]:
    """Callers of one server.

    Args:
        address: ``host:port`` of gRPC.
        numbers: one for each caller.
    """
    question = read_speech(QUESTION)
    return [Caller(number, lambda: _open_call(address), question) for number in numbers]


def _open_call(address: str) -> connect:
    return connect(
        address,
        tools=DEMO_TOOLS,
        turn=TurnOptions(eagerness="normal"),
        retry=_OPENING,
        resume=False,  # what the server loses is measured, not what clients make good
    )


@dataclass(frozen=True)
class Case:
    """One process that was killed or stopped. Times are seconds from the signal; None: not in time."""

    model: str
    signal: str
    noticed_s: float | None
    restored_s: float | None
    answered_s: float | None
    calls_of_others: int
    calls_of_its_own: int
    turns: int

    def row(self) -> tuple[str, ...]:
        """The cells of a table."""
        times = (self.noticed_s, self.restored_s, self.answered_s)
        counts = (self.calls_of_others, self.calls_of_its_own, self.turns)
        return (
            self.model,
            f"SIG{self.signal}",
            *("never" if each is None else f"{each:.1f} s" for each in times),
            *map(str, counts),
        )

    @property
    def passed(self) -> bool:
        """Whether it was replaced, all are answered again, and no call was lost that did not depend on it."""
        return None not in (self.noticed_s, self.restored_s, self.answered_s) and not self.calls_of_others


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", help="with commas between them (default: all that are loaded)")
    parser.add_argument("--signals", default="KILL,STOP", help="default: %(default)s")
    parser.add_argument("--calls", type=int, default=8, help="at once (default: %(default)s)")
    parser.add_argument(
        "--limit", type=float, default=60.0, help="seconds for each case (default: %(default)g)"
    )
    parser.add_argument(
        "--total", type=float, default=720.0, help="seconds; no case begins later (default: %(default)g)"
    )
    args = parser.parse_args()
    args.signals = args.signals.split(",")
    if unknown := set(args.signals) - set(_SIGNALS):
        parser.error(f"unknown signals: {', '.join(sorted(unknown))}; there are {', '.join(_SIGNALS)}")
    if args.calls < 1:
        parser.error("at least one call is needed")
    return args


async def measure(
    server: EmbeddedServer, callers: Sequence[Caller], model: str, name: str, limit_s: float
) -> Case:
    """Send a signal to a process of ``model``, and see what comes of it.

    Args:
        server: supervised, with calls under way.
        callers: who calls.
        model: one of the loaded models.
        name: of the signal: ``KILL`` or ``STOP``.
        limit_s: for the model, and then again for the callers (seconds).
    """
    stub = next(each for each in find_stubs(server.pid) if each.model == model)
    before = _restarts(server, model)
    began = time.time()
    os.kill(stub.pid, _SIGNALS[name])
    entry = _entry(server, model)
    while not (_restarts(server, model) > before and entry["state"] == "serving"):
        if time.time() - began > limit_s:
            break
        await asyncio.sleep(_LOOK_S)
        entry = _entry(server, model)
    last = entry["last"] if _restarts(server, model) > before else None
    restored = time.time()
    answered = None
    while answered is None and time.time() - restored < limit_s:
        await asyncio.sleep(_LOOK_S)
        first = [first_answer(caller.turns, began) for caller in callers]
        if all(first):
            answered = max(first) - began
    losses = [loss for caller in callers for loss in caller.losses if loss.at > began]
    own = [loss for loss in losses if model == "voice_agent" and _is_of(loss, stub.instance)]
    return Case(
        model,
        name,
        last["noticed"] - began if last else None,
        last["answered"] - began if last and last["answered"] else None,
        answered,
        len(losses) - len(own),
        len(own),
        sum(not turn.answered for caller in callers for turn in _ended_since(caller.turns, began)),
    )


def _is_of(loss: Loss, instance: str) -> bool:
    """Whether the call was lost because this instance died."""
    return instance in loss.reason


def _ended_since(turns: Sequence[Turn], began: float) -> list[Turn]:
    return [turn for turn in turns if turn.ended > began]


def _entry(server: EmbeddedServer, model: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(server.record_path.read_text())["models"][model]
    return found


def _restarts(server: EmbeddedServer, model: str) -> int:
    return sum(_entry(server, model)["restarts"].values())


async def _measure_all(server: EmbeddedServer, args: argparse.Namespace, console: Console) -> list[Case]:
    models = args.models.split(",") if args.models else sorted(server.models)
    end = time.monotonic() + args.total
    cases: list[Case] = []
    callers = make_callers(server.endpoints.grpc, range(args.calls))
    async with calling(callers):
        await until_all_answered(callers, args.limit)
        for model in models:
            for name in args.signals:
                if time.monotonic() > end:
                    console.print(f"no time is left for {model}, SIG{name}")
                    continue
                cases.append(await measure(server, callers, model, name, args.limit))
                console.print("  ".join(cases[-1].row()), markup=False)
    for caller in callers:
        for loss in caller.losses:
            console.print(f"caller {caller.number}: {loss.reason}", markup=False)
    return cases


def _print(cases: Sequence[Case], console: Console) -> None:
    table = make_table("models that died", *_HEADINGS, left=2)
    for case in cases:
        table.add_row(*case.row(), style="" if case.passed else "red")
    console.print(table)


def main() -> int:
    """Measure and print; the exit status is 1 if something was not replaced, or lost a call of others."""
    args, console = _arguments(), make_console()
    try:
        with own_server(console, "bench-recovery") as server:
            cases = asyncio.run(_measure_all(server, args, console))
    except ClientError as error:
        console.print(f"bench-recovery: {error}", style="red", markup=False)
        return 1
    _print(cases, console)
    return 0 if cases and all(case.passed for case in cases) else 1


if __name__ == "__main__":
    sys.exit(main())
