"""A line that is being typed, without the terminal's own echo: what is shown meanwhile would overwrite it."""

from __future__ import annotations

import codecs

_MAX_CHARACTERS = 2_000
_BACKSPACE = "\b\x7f"
_END = "\x04"
_ESCAPE = "\x1b"
_CLEAR = "\x15"
_ERASE_WORD = "\x17"
_SEQUENCES = "[O"


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
        """Take what was typed; returns the lines that it ends."""
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
