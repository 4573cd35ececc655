"""Arguments that several commands share."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from parley_client.audio.microphone import DEFAULT_CHUNK_MS
from parley_client.connection import DEFAULT_SERVER
from parley_client.errors import AudioFileError

_CHUNK_MS = (10, 500)


def add_server(
    parser: argparse.ArgumentParser,
    timeout_s: float = 10.0,
    limits: str = "connecting",
    *,
    again: bool = False,
) -> None:
    """``--server`` and ``--timeout``.

    Args:
        parser: of the command.
        timeout_s: default of the limit (seconds).
        limits: what it limits.
        again: it is a part of a command that has them, too; what was said there counts.
    """
    parser.add_argument(
        "--server",
        type=address,
        default=argparse.SUPPRESS if again else DEFAULT_SERVER,
        metavar="HOST:PORT",
        help=f"Triton's gRPC endpoint (default: {DEFAULT_SERVER})",
    )
    add_timeout(parser, timeout_s, limits, again=again)


def add_timeout(
    parser: argparse.ArgumentParser,
    timeout_s: float = 10.0,
    limits: str = "connecting",
    *,
    again: bool = False,
) -> None:
    """``--timeout``, as :func:`add_server` adds it."""
    parser.add_argument(
        "--timeout",
        type=positive,
        default=argparse.SUPPRESS if again else timeout_s,
        metavar="S",
        help=f"limit for {limits} (default: {timeout_s} s)",
    )


def add_pacing(parser: argparse.ArgumentParser) -> None:
    """``--chunk-ms``."""
    parser.add_argument(
        "--chunk-ms",
        type=_chunk_ms,
        metavar="MS",
        default=DEFAULT_CHUNK_MS,
        help=f"length of one piece of audio, {_CHUNK_MS[0]} to {_CHUNK_MS[1]} (default: %(default)s)",
    )


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


def address(text: str) -> str:
    """``HOST:PORT``, as an argument."""
    host, _, port = text.rpartition(":")
    if "/" in host or not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise argparse.ArgumentTypeError(f"HOST:PORT expected, for example {DEFAULT_SERVER}, not {text!r}")
    return text


def _chunk_ms(text: str) -> int:
    least, most = _CHUNK_MS
    if not text.isdecimal() or not least <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"{least} to {most} expected, not {text!r}")
    return int(text)


def check_output(path: Path | None) -> None:
    """Notice before a call that its recording cannot be written.

    Raises:
        AudioFileError: it cannot.
    """
    if path is None:
        return
    if path.is_dir():
        raise AudioFileError(f"{path}: is a folder; name a file")
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise AudioFileError(f"{path}: cannot be written")


def within(least: float, most: float) -> Callable[[str], float]:
    """A number in a range, as an argument."""

    def read(text: str) -> float:
        value = float(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{least:g} to {most:g} expected, not {text!r}")
        return value

    read.__name__ = "number"  # as argparse names it where `float` fails
    return read


def count(text: str) -> int:
    """A whole number that is not negative, as an argument."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"a whole number expected, not {text!r}")
    return int(text)


def positive(text: str) -> float:
    """A number above zero, as an argument."""
    value = float(text)
    if value <= 0:
        raise argparse.ArgumentTypeError("must be above 0")
    return value
