"""``parley trace``: where the time of a call went."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from parley_client.cli.waterfall import print_waterfall
from parley_client.errors import TraceFileError
from parley_client.waterfall.calls import CallTimes
from parley_client.waterfall.events import read_events
from parley_client.waterfall.lines import read_lines
from parley_client.waterfall.servers import read_server
from parley_client.waterfall.traces import read_trace

EXAMPLES = """\
  parley trace http://127.0.0.1:6006         list the newest calls that Phoenix or Jaeger has
  parley trace http://127.0.0.1:6006 3f2a    draw the call whose session or trace begins so
  parley trace traces.jsonl                  the only call of a file, or the list of its calls
  parley say FILE.wav --events events.jsonl && parley trace events.jsonl
                                             without a trace, from the events of a client"""
HELP = "draw where the time of a call went, from a trace or from recorded events"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="http://HOST:PORT of Phoenix or Jaeger; or a file: OTLP as JSON lines, as a collector's file "
        "exporter writes it, or what --events has recorded",
    )
    parser.add_argument(
        "call",
        nargs="?",
        default="",
        metavar="CALL",
        help="id of a session or trace, or its beginning (default: the only call)",
    )


def run(args: argparse.Namespace, console: Console) -> int:
    """Draw one call.

    Raises:
        TraceFileError: the file or the server cannot be read.
        UsageError: no call or several calls are meant; the message lists them.
    """
    if args.source.startswith(("http://", "https://")):
        call = read_server(args.source, args.call)
    else:
        call = _read(Path(args.source), args.call)
    print_waterfall(console, call)
    return 0


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
