"""``parley trace``: where the time of a call went."""

from __future__ import annotations

import argparse
import importlib
import signal
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape

from parley_client.cli.arguments import handle_signals
from parley_client.cli.waterfall import print_waterfall
from parley_client.errors import TraceFileError, UsageError
from parley_client.waterfall.calls import CallTimes
from parley_client.waterfall.events import read_events
from parley_client.waterfall.lines import read_lines
from parley_client.waterfall.receiver import TraceReceiver
from parley_client.waterfall.traces import TraceCollection, read_trace

EXAMPLES = """\
  parley trace --listen 4318 traces.jsonl
                                   collect traces, and draw each call when it is over; then, elsewhere:
                                   OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318 make serve
  parley trace traces.jsonl        draw the only call of a file, or list its calls
  parley trace traces.jsonl 3f2a   the call whose session or trace begins so
  parley say FILE.wav --events events.jsonl && parley trace events.jsonl
                                   without a trace, from the events of a client"""
HELP = "draw where the time of a call went, from a trace or from recorded events"
_NEEDS = (
    "--listen needs the packages of the extra “traces”; install them in the checkout with: "
    "pip install '.[traces]'"
)
# Longer than OpenTelemetry's SDK keeps spans before it exports them.
_SETTLE_S = 6.0
_WAIT_S = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    parser.add_argument(
        "file",
        type=Path,
        metavar="FILE",
        help="OTLP as JSON lines, as a collector's file exporter writes it, or what --events has recorded",
    )
    parser.add_argument(
        "call",
        nargs="?",
        default="",
        metavar="CALL",
        help="id of a session or trace, or its beginning (default: the only call of the file)",
    )
    parser.add_argument(
        "--listen",
        type=_port,
        metavar="PORT",
        help="take traces at http://127.0.0.1:PORT (OTLP over HTTP) instead, append them to FILE, and draw "
        f"each call {_SETTLE_S:g} s after its last span; 0: any free port. Ctrl-C ends it",
    )


def run(args: argparse.Namespace, console: Console) -> int:
    """Draw one call, or those that come.

    Raises:
        TraceFileError: the file cannot be used.
        UsageError: no call or several calls are meant; the message lists them.
    """
    if args.listen is None:
        print_waterfall(console, _read(args.file, args.call))
        return 0
    if args.call:
        raise UsageError("--listen draws every call: name none")
    try:
        importlib.import_module("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    except ImportError as error:
        raise UsageError(_NEEDS) from error
    ended = threading.Event()
    # A flag, because an exception could come between two lines and lose the spans that were just taken.
    with (
        TraceReceiver(args.listen, args.file) as receiver,
        handle_signals(lambda *_: ended.set(), signal.SIGINT),
    ):
        console.print(
            f"Traces go to [bold]{escape(str(args.file))}[/]. Ctrl-C ends this. Start servers with:"
        )
        console.print(f"  OTEL_EXPORTER_OTLP_ENDPOINT={receiver.url}", soft_wrap=True)
        _draw_as_they_end(receiver, ended, console)
    return 0


def _draw_as_they_end(receiver: TraceReceiver, ended: threading.Event, console: Console) -> None:
    collection = TraceCollection(_SETTLE_S, time.monotonic)
    while not ended.is_set():
        collection.add(receiver.take(_WAIT_S))
        _draw_all(collection.complete(), console)
    while spans := receiver.take(0):
        collection.add(spans)
    _draw_all(collection.complete(all_of_them=True), console)
    if collection.dropped:
        console.print(
            f"[yellow]{collection.dropped} spans were too many to be drawn; they are in the file.[/]"
        )


def _draw_all(calls: list[CallTimes], console: Console) -> None:
    for call in calls:
        console.print()
        print_waterfall(console, call)


class _FirstLine(msgspec.Struct, rename="camel"):
    resource_spans: list[Any] | None = None


def _read(path: Path, wanted: str) -> CallTimes:
    first = next(read_lines(path, bytes), None)
    if first is None:
        raise TraceFileError(f"{path}: is empty")
    try:
        is_trace = msgspec.json.decode(first, type=_FirstLine).resource_spans is not None
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise TraceFileError(f"{path}, line 1: no JSON object: {error}") from error
    return read_trace(path, wanted) if is_trace else read_events(path, wanted)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) >= 65_536:
        raise argparse.ArgumentTypeError(f"a port expected, for example 4318, not {text!r}")
    return int(text)
