"""Lines that are typed while other output is shown."""

from __future__ import annotations

import asyncio
import codecs
import os
import re
import sys
import termios
import tty
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import partial

from parley.protocol import MAX_MESSAGE_BYTES
from parley_client.errors import UsageError
from parley_client.tools import run_in_thread

_MAX_CHARACTERS = 2_000
_BACKSPACE = "\b\x7f"
_END = "\x04"
_ESCAPE = "\x1b"
_CLEAR = "\x15"
_ERASE_WORD = "\x17"
_SEQUENCES = "[O"

_READ_BYTES = 1024


class LineEditor:
    """Makes lines of what a terminal sends: characters, backspace, Ctrl-U, Ctrl-W, Enter and Ctrl-D."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._skipping = ""
        self.text = ""
        """What was typed of the current line."""
        self.ended = False
        """Ctrl-D was pressed on an empty line."""

    def feed(self, data: bytes) -> list[str]:
        """Add what was typed; returns the lines that it ends."""
        lines = []
        for character in self._decoder.decode(data):
            if self._skips(character):
                continue
            if character in "\r\n":
                lines.append(self.text)
                self.text = ""
            else:
                self._edit(character)
        return lines

    def _skips(self, character: str) -> bool:
        """Whether it belongs to an escape sequence, as the arrow keys send."""
        if self._skipping == _ESCAPE:
            self._skipping = character if character in _SEQUENCES else ""
            return True
        if self._skipping:
            if "@" <= character <= "~":
                self._skipping = ""
            return True
        if character == _ESCAPE:
            self._skipping = _ESCAPE
            return True
        return False

    def _edit(self, character: str) -> None:
        if character in _BACKSPACE:
            self.text = self.text[:-1]
        elif character == _CLEAR:
            self.text = ""
        elif character == _ERASE_WORD:
            self.text = self.text.rstrip().rpartition(" ")[0]
            self.text += " " if self.text else ""
        elif character == _END:
            self.ended = self.ended or not self.text
        elif character.isprintable() and len(self.text) < _MAX_CHARACTERS:
            self.text += character


def can_be_typed_at() -> bool:
    """Whether standard input is a terminal, and this program may read it."""
    try:
        return sys.stdin.isatty() and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (AttributeError, OSError, ValueError):  # no standard input, or a closed one
        return False


async def piped_lines() -> AsyncIterator[str]:
    """Lines of standard input that is a pipe or a file, each read when it is asked for.

    Raises:
        UsageError: there is no standard input, or a line exceeds :data:`parley.protocol.MAX_MESSAGE_BYTES`.
    """
    try:
        pipe = sys.stdin.fileno()
    except (AttributeError, OSError, ValueError) as error:
        raise UsageError("lines are read from standard input, which is closed") from error
    rest = b""
    while data := await run_in_thread(partial(os.read, pipe, _READ_BYTES), "standard-input"):
        *lines, rest = re.split(rb"[\r\n]", rest + data)
        for line in lines:
            yield line.decode(errors="replace")
        if len(rest) > MAX_MESSAGE_BYTES:
            raise UsageError(f"a line of standard input has more than {MAX_MESSAGE_BYTES} bytes")
    yield rest.decode(errors="replace")


@contextmanager
def typed_lines(
    on_line: Callable[[str], object],
    on_end: Callable[[], object],
    on_change: Callable[[str], None] | None = None,
) -> Iterator[None]:
    """Read lines on the event loop, if standard input is a terminal.

    Args:
        on_line: Gets each line, without its end.
        on_end: Called once, when Ctrl-D was pressed or the terminal was closed.
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
