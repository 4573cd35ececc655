"""Text and tool calls out of a stream of Python: ``say("Hello.")`` or ``set_timer(minutes=10)``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from parley.llm.python_calls.functions import SAY, Function
from parley.llm.replies import BadCall, ParsedCall, Piece, TextPiece

_CALL = re.compile(r"([A-Za-z_]\w*)\(", re.ASCII)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_ARGUMENT = re.compile(r"([A-Za-z_]\w*)=", re.ASCII)
_CONSTANTS = {"True": True, "False": False, "None": None}
_OPENINGS = ('"', 'text="')
"""Of what is said; the second is what a model may write that no grammar guides."""
_ESCAPES = {"n": " ", "t": " ", "r": " "}
_decoder = json.JSONDecoder()


class CallStream:
    """Parser of one answer; takes it in pieces of any size.

    What is said is given out as it comes, a call when it is complete. An answer that is neither, as one that
    no grammar has guided may be, is text.

    Args:
        functions: by name.
    """

    def __init__(self, functions: Mapping[str, Function]) -> None:
        self._functions = functions
        self._held = ""  # not yet known what it is, or white space at the end of what is said
        self._state = self._begin
        self._spoken = False

    def feed(self, text: str) -> list[Piece]:
        """Take the next piece of text."""
        self._held += text
        pieces: list[Piece] = []
        while self._state(pieces):
            pass
        return pieces

    def finish(self) -> list[Piece]:
        """The answer has ended: what was held back is decided now."""
        pieces: list[Piece] = []
        rest = self._held.strip()
        if self._state == self._call:
            pieces.append(BadCall(rest, "the answer ended within the call"))
        elif self._state == self._begin and not any(
            f"{SAY}({opening}".startswith(rest) for opening in _OPENINGS
        ):
            self._give(self._held, pieces)
        self._held = ""
        return pieces

    # --- states: each returns whether there may be more to do -----------------------------

    def _begin(self, pieces: list[Piece]) -> bool:  # noqa: ARG002 - nothing is said there
        """Before a statement."""
        self._held = self._held.lstrip()
        if not self._held:
            return False
        if (name := _NAME.match(self._held)) is None:
            self._state = self._plain
            return True
        if name.end() == len(self._held):
            return False  # the name may go on
        call = _CALL.match(self._held)
        if call is None:
            self._state = self._plain
        elif call[1] != SAY:
            self._state = self._call
        else:
            return self._begin_saying(self._held[call.end() :])
        return True

    def _begin_saying(self, rest: str) -> bool:
        """Behind the bracket of what is to be said."""
        for opening in _OPENINGS:
            if rest.startswith(opening):
                self._held = rest[len(opening) :]
                self._state = self._said
                self._spoken = False
                return True
        if any(opening.startswith(rest) for opening in _OPENINGS):
            return False  # it may go on so
        self._state = self._call
        return True

    def _said(self, pieces: list[Piece]) -> bool:
        """Within the quotes of what is said."""
        taken: list[str] = []
        index = 0
        while index < len(self._held):
            character = self._held[index]
            if character == '"':
                self._give("".join(taken).rstrip(), pieces)
                self._held = self._held[index + 1 :]
                self._state = self._end
                return True
            if character == "\\":
                if index + 1 == len(self._held):
                    break
                index += 1
                character = _ESCAPES.get(self._held[index], self._held[index])
            taken.append(character)
            index += 1
        text = "".join(taken)
        sure = text.rstrip()
        self._give(sure, pieces)
        self._held = text[len(sure) :] + self._held[index:]
        return False

    def _end(self, pieces: list[Piece]) -> bool:  # noqa: ARG002 - nothing is said there
        """Behind what was said, up to the end of the line."""
        _, newline, rest = self._held.partition("\n")
        self._held = rest
        if not newline:
            return False
        self._state = self._begin
        return True

    def _call(self, pieces: list[Piece]) -> bool:
        """Within a call."""
        if ")" not in self._held:
            return False
        read = _read(self._held)
        if read is None:
            return False
        name, arguments, end = read
        function = self._functions.get(name)
        if function is None:
            pieces.append(BadCall(self._held[:end], f"there is no function {name}"))
        else:
            pieces.append(ParsedCall(function.tool.name, arguments))
        self._held = self._held[end:]
        self._state = self._end
        return True

    def _plain(self, pieces: list[Piece]) -> bool:
        """In an answer that is not Python."""
        sure = self._held.rstrip()
        self._give(sure, pieces)
        self._held = self._held[len(sure) :]
        return False

    def _give(self, text: str, pieces: list[Piece]) -> None:
        if not self._spoken:
            text = text.lstrip()
        if text:
            self._spoken = True
            pieces.append(TextPiece(text))


def _read(text: str) -> tuple[str, dict[str, Any], int] | None:
    """A call's name, its arguments and where it ends; None: it is not complete, or none that is known."""
    begin = _CALL.match(text)
    if begin is None:
        return None
    try:
        arguments, end = _arguments(text, begin.end())
    except (ValueError, IndexError, RecursionError):
        return None
    return begin[1], arguments, end


def _arguments(text: str, index: int) -> tuple[dict[str, Any], int]:
    if text.startswith("**", index):
        whole, index = _value(text, index + 2)
        if not isinstance(whole, dict) or text[index] != ")":
            raise ValueError
        return whole, index + 1
    arguments: dict[str, Any] = {}
    while text[index] != ")":
        if arguments:
            if text[index] != ",":
                raise ValueError
            index = _blank(text, index + 1)
        named = _ARGUMENT.match(text, index)
        if named is None or named[1] in arguments:
            raise ValueError
        arguments[named[1]], index = _value(text, named.end())
        index = _blank(text, index)
    return arguments, index + 1


def _value(text: str, index: int) -> tuple[Any, int]:
    for name, value in _CONSTANTS.items():
        if text.startswith(name, index):
            return value, index + len(name)
    return _decoder.raw_decode(text, index)


def _blank(text: str, index: int) -> int:
    while text[index] == " ":
        index += 1
    return index
