"""Lines that are typed while something else is shown."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from parley_client.terminal.line_editor import LineEditor

_READ_BYTES = 1024


def can_be_typed_at() -> bool:
    """Whether standard input is a terminal, and this program may read it."""
    try:
        return sys.stdin.isatty() and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (AttributeError, OSError, ValueError):  # no standard input, or a closed one
        return False


@contextmanager
def typed_lines(
    on_line: Callable[[str], None],
    on_end: Callable[[], None],
    on_change: Callable[[str], None] | None = None,
) -> Iterator[None]:
    """Read lines on the event loop, if somebody can type them.

    Args:
        on_line: Gets each line, without its end.
        on_end: Told once that Ctrl-D was pressed, or the terminal was closed.
        on_change: Shows the line that is being typed; None: the terminal does so itself.
    """
    if not can_be_typed_at():
        yield
        return
    loop, editor, terminal = asyncio.get_running_loop(), LineEditor(), sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def stop() -> None:
        loop.remove_reader(terminal)
        on_end()

    def read() -> None:
        try:
            data = os.read(terminal, _READ_BYTES)
        except OSError:  # the terminal was closed
            data = b""
        for line in editor.feed(data):
            on_line(line)
        if on_change is not None:
            on_change(editor.text)
        if not data or editor.ended:
            stop()

    if on_change is not None:
        tty.setcbreak(terminal, termios.TCSADRAIN)
    loop.add_reader(terminal, read)
    try:
        yield
    finally:
        loop.remove_reader(terminal)
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
