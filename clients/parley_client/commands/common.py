"""Arguments that several commands share."""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from parley.protocol import OUTPUT_SAMPLE_RATES, TurnOptions
from parley_client.audio.microphone import DEFAULT_CHUNK_MS
from parley_client.connection import DEFAULT_SERVER, connect
from parley_client.demo_tools import DEMO_TOOLS
from parley_client.options import Backoff, Deadlines
from parley_client.tools import ToolTable, load_tools


def add_server(parser: argparse.ArgumentParser) -> None:
    """``--server`` and ``--timeout``."""
    parser.add_argument(
        "--server",
        default=DEFAULT_SERVER,
        metavar="HOST:PORT",
        help="Triton's gRPC endpoint (default: %(default)s)",
    )
    add_timeout(parser)


def add_timeout(parser: argparse.ArgumentParser) -> None:
    """``--timeout``."""
    parser.add_argument(
        "--timeout",
        type=positive,
        default=10.0,
        metavar="S",
        help="limit for connecting (default: %(default)s s)",
    )


def add_session(parser: argparse.ArgumentParser) -> None:
    """Everything that opens a session."""
    group = parser.add_argument_group("session")
    group.add_argument("--system-prompt", metavar="TEXT", help="who the agent is (default: the server's)")
    group.add_argument("--voice", help="a voice of the synthesizer (default: its first)")
    group.add_argument(
        "--exaggeration",
        type=float,
        metavar="X",
        help="how much emotion the voice has, 0-2, if it has any (default: the server's)",
    )
    group.add_argument(
        "--guidance",
        type=float,
        metavar="X",
        help="how closely the voice keeps to the text's pace, 0-1, if it can (default: the server's)",
    )
    group.add_argument("--language", default="en", help="what is spoken (default: %(default)s)")
    group.add_argument(
        "--phrase", action="append", default=[], metavar="TEXT", help="a name or word to expect; repeatable"
    )
    group.add_argument(
        "--eagerness",
        choices=("eager", "normal", "patient", "off"),
        help="how soon a pause counts as the end of what is said; off: at once (default: the server's)",
    )
    group.add_argument(
        "--output-rate",
        type=int,
        choices=OUTPUT_SAMPLE_RATES,
        default=22_050,
        help="sample rate of the agent's audio (default: %(default)s Hz)",
    )
    group.add_argument(
        "--tools",
        type=Path,
        metavar="FILE.py",
        help="functions marked with @tool, offered beside the built-in get_weather, get_time and set_timer",
    )


def add_pacing(parser: argparse.ArgumentParser) -> None:
    """``--chunk-ms``."""
    parser.add_argument(
        "--chunk-ms",
        type=int,
        choices=range(10, 501),
        metavar="MS",
        default=DEFAULT_CHUNK_MS,
        help="length of one piece of audio, 10-500 (default: %(default)s)",
    )


def tool_table(args: argparse.Namespace, on_answer: Callable[..., None] | None = None) -> ToolTable:
    """The built-in tools and the user's.

    Raises:
        ToolDefinitionError: the user's file is not usable.
    """
    table = ToolTable(DEMO_TOOLS, on_answer=on_answer)
    for function in load_tools(args.tools) if args.tools else ():
        table.add(function)
    return table


def open_call(args: argparse.Namespace, tools: ToolTable, **changes: Any) -> connect:
    """The connection that the arguments describe."""
    settings: dict[str, Any] = {
        "system_prompt": args.system_prompt,
        "tools": tools,
        "voice": args.voice,
        "exaggeration": args.exaggeration,
        "guidance_weight": args.guidance,
        "language": args.language,
        "phrases": args.phrase,
        "turn": TurnOptions(eagerness=args.eagerness),
        "output_sample_rate": args.output_rate,
        "retry": Backoff(attempts=3),
        "deadlines": Deadlines(connect_s=args.timeout),
        **changes,
    }
    return connect(args.server, **settings)


def ending_signals() -> list[signal.Signals]:
    """What ends the program besides Ctrl-C: SIGTERM, and a closed terminal's SIGHUP if not ignored."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGTERM] if ignored else [signal.SIGTERM, signal.SIGHUP]


@contextmanager
def handle_signals(handler: Callable[[int, FrameType | None], None], *more: signal.Signals) -> Iterator[None]:
    """Handle the ending signals, and ``more``, by ``handler`` for a while."""
    before = {number: signal.signal(number, handler) for number in [*ending_signals(), *more]}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def run_to_end(work: Coroutine[Any, Any, int]) -> int:
    """Run ``work``; Ctrl-C and :func:`ending_signals` cancel it, so that a call is hung up first.

    Returns:
        The exit status.

    Raises:
        KeyboardInterrupt: it was cancelled.
    """
    before = {number: signal.getsignal(number) for number in ending_signals()}

    async def supervised() -> int:
        task = asyncio.current_task()
        assert task is not None
        for number in before:
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        return await work

    try:
        return asyncio.run(supervised())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def positive(text: str) -> float:
    """A number above zero, as an argument."""
    value = float(text)
    if value <= 0:
        raise argparse.ArgumentTypeError("must be above 0")
    return value
