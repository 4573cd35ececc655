"""Printing to readers that may leave, and lines that keep their indent."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import NoReturn

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from parley_client.errors import OutputClosedError

OUTPUT_CLOSED = 141
"""Exit status of a program whose reader has left; a shell says 128 + SIGPIPE."""
_LEAST_TEXT = 24


class OutputConsole(Console):
    """A console whose reader may leave.

    Rich's own raises :class:`SystemExit`, which ends an event loop in the middle of its tasks; an
    ordinary exception lets calls be hung up and servers be stopped.
    """

    def on_broken_pipe(self) -> NoReturn:
        """Called by rich.

        Raises:
            OutputClosedError: always.
        """
        raise OutputClosedError("nobody reads the output any more")


def until_closed(program: Callable[[], int]) -> int:
    """The exit status of ``program``, and :data:`OUTPUT_CLOSED` if the reader of its output left."""
    try:
        status = program()
        sys.stdout.flush()
    except (OutputClosedError, BrokenPipeError):
        # What is still buffered would fail once more when Python flushes it at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OUTPUT_CLOSED
    return status


def print_error(message: str, code: str, advice: str = "") -> None:
    """Say on standard error what failed, and what can be done about it.

    Args:
        message: one line.
        code: of the error.
        advice: a line of its own; may be empty.
    """
    console = OutputConsole(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"[red]parley: {escape(message)}[/] [dim]({code})[/]")
    if advice:
        console.print(escape(advice))


def print_warning(message: str, advice: str = "") -> None:
    """Say on standard error what is not as it should be, and what can be done about it.

    Args:
        message: one line.
        advice: a line of its own; may be empty.
    """
    console = OutputConsole(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"[yellow]warning: {escape(message)}[/]")
    if advice:
        console.print(escape(advice))


def print_hanging(console: Console, head: str, text: str) -> None:
    """Print ``text`` behind ``head``; lines that do not fit go on below its beginning.

    Args:
        console: where to print.
        head: the first line's beginning, with rich's markup.
        text: may be of any length, with rich's markup.
    """
    first, rest = Text.from_markup(head), Text.from_markup(text)
    lines = rest.wrap(console, max(_LEAST_TEXT, console.width - first.cell_len))
    for line in lines:
        line.rstrip()
    indent = Text("\n" + " " * first.cell_len)
    console.print(Text.assemble(first, indent.join(lines)), soft_wrap=True)
