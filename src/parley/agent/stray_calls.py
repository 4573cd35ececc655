"""Tool calls, JSON and tags of chat templates that a language model writes into its text."""

from __future__ import annotations

import re
from collections.abc import Collection

_CONTAINERS = frozenset(
    "tool_call tool_calls tool_response tool_code function functions function_call function_calls "
    "function_results invoke parameter parameters think thinking thought reasoning".split()
)
_TAG = re.compile(
    r"<(?P<close>/?)(?P<name>[\w:]+)(?P<rest>[\s=][^<>\n]*)?>|<[|\uff5c][^<>\n|\uff5c]*[|\uff5c]?>"
)
_TAG_BEGUN = re.compile(r"<(?:/?(?P<name>[\w:]*)(?P<rest>[\s=][^<>\n]*)?|[|\uff5c][^<>\n]*)\Z")
_HEADERS = {
    "channel": ["<|message|>"],
    "start": ["<|message|>"],
    "start_header_id": ["<|end_header_id|>"],
    "im_start": ["\n"],
}
"""Marks of templates before the name of a role or channel, and what ends it."""
_MARKER = re.compile(r"\[/?(?:TOOL_CALLS?|TOOL_RESULTS?|AVAILABLE_TOOLS|INST)\]")
_CALL = re.compile(
    r"(?<![\w.])(?:[A-Za-z_][\w.]{0,64}\("
    r"(?=\s{0,8}(?:[A-Za-z_]\w{0,64}\s{0,8}=|[A-Za-z_][\w.]{0,64}\(|[\"'`\u201c\u2018{\[)]|\*\*))"
    r"|[A-Za-z]\w{0,64}_[\w.]{0,64}\(|[A-Za-z_]\w{0,64}\.\w{1,64}\()"
)
_JSON = re.compile(r"\{\s*(?:[\"'\u201c}]|\w+\s*[:=])|\[\s*(?:\{\s*[\"']|\"[^\"\n]{0,80}\"\s*[,\]])")
_LINE = re.compile(
    r"(?:(?:Action|Tool) Input|(?:Function|Tool) Call)\s{0,8}:|Action\s{0,8}:\s{0,8}\w{1,64}_\w",
    re.IGNORECASE,
)
_BEGUN = re.compile(
    r"\A(?:[A-Za-z_](?![\w.]{131})(?:[\w.]|\\_)*(?:\\|\((?:\s*\*?(?:[A-Za-z_]\w*\s*)?)?)?|\{\s*(?:\w+\s*)?"
    r"|\[\s*(?:\{\s*|\"[^\"\n]{0,80}\"?\s*)?|\[/?[A-Z_]*|(?:Action|Tool|Function)\b[^\n]*)\Z"
)
_QUOTES = dict(zip("\"'`\u201c\u2018", "\"'`\u201d\u2019", strict=True))
_BEFORE_QUOTE = frozenset("([{,:;=+%*|")
_PREFIXES = frozenset("bfruBFRU")
"""Letters between these and a string of Python."""
_AFTER_QUOTE = re.compile(r"\s{8}|\s{0,7}(?:[])},:;=+%*|]|\.\w|\Z)")
"""What follows the end of a string: other quotes in it, and apostrophes, belong to it."""
_UNDECIDED_QUOTE = re.compile(r"\s{0,7}\.?\Z")
_START = re.compile(r"[<\[{]|(?<![\w.])[A-Za-z_]")
_WORD = re.compile(r"\w+")
_CLOSING = {"(": ")", "{": "}", "[": "]"}
_HELD = 160
"""Characters that may decide what the text before them is."""
_DEEPEST = 64
"""Brackets in brackets that are counted."""
_THOUGHTS = ("think", "thinking", "thought", "reasoning")


def _patterns(tools: Collection[str]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Of a tool's name with what makes it a call, and of one that the text ends behind.

    The name of an ordinary word is a call only before a bracket; any other one is, whatever follows.
    """
    words = {re.escape(name) for name in tools if name.isalpha() and name.islower()}
    names = {re.escape(name).replace("_", r"\\?_") for name in tools} - words
    begin = r"(?<![\w.])(?:(?:functions|tools)\.)?"
    word, name = ("|".join(sorted(found, key=len, reverse=True)) or "(?!)" for found in (words, names))
    number, bracket, marks = r"(?::\d{1,3})?", r"[({]", r"\**\s{0,2}"
    call = rf"{begin}(?:(?:{word}){number}{bracket}|(?:{name})(?!\w)(?:{number}{marks}{bracket})?)"
    begun = rf"{begin}(?:{word}|(?:{name}){marks})(?::\d{{0,3}}{marks})?\Z"
    return re.compile(call), re.compile(begun)


class StrayCallFilter:
    """Leaves out of a text what only a program can read, while it is being written.

    What may become such text is held back until that is decided, for a bounded number of characters. A call
    and JSON end with their last bracket, the content of a tag with its closing tag, or all with the text.

    Args:
        tools: names of tools. One that is no ordinary word is left out wherever it stands.
    """

    def __init__(self, tools: Collection[str] = ()) -> None:
        self._named, self._named_begun = _patterns(tools)
        self._containers = _CONTAINERS | {name.lower() for name in tools}
        self.found = False
        """Whether there was a call or JSON; not for tags without content."""
        self._text = "\n"  # one character that is read, and what is not decided
        self._open: list[str] = []  # what ends the text that is left out, the innermost last
        self._quote = ""  # ends the string that has begun; empty: none has
        self._is_escaped = False  # whether the next character of the string is
        self._last = ""  # character outside of strings that is no space
        self._final = False

    def push(self, text: str) -> str:
        """What is to be said of the text so far, as far as it is decided; linear in its length."""
        self._text += text
        kept: list[str] = []
        at = 1
        while at < len(self._text):
            begin, at = at, self._skip(at) if self._open else self._keep(at, kept)
            if at == begin:
                break
        self._text = self._text[at - 1 :]
        return "".join(kept)

    def finish(self) -> str:
        """The rest; no more text follows."""
        self._final = True
        return self.push("")

    def _keep(self, begin: int, kept: list[str]) -> int:
        """Keep text up to what is left out, or what is not decided; returns where to go on."""
        text, at = self._text, begin
        while mark := _START.search(text, at):
            at = mark.start()
            end = self._end_of_mark(at)
            if end != at:
                kept.append(text[begin:at])
                return at if end is None else end
            word = _WORD.match(text, at)
            at = word.end() if word else at + 1
        kept.append(text[begin:])
        return len(text)

    def _end_of_mark(self, at: int) -> int | None:
        """Behind the mark with which such text begins; ``at``: there is none; None: that is not decided."""
        text = self._text
        if (tag := _TAG.match(text, at)) and (tag["name"] is None or tag["name"].lower() in self._containers):
            return self._end_of_tag(tag)
        if marker := _MARKER.match(text, at):
            return marker.end()
        starts_line = text[at - 1] == "\n"
        if line := _LINE.match(text, at) if starts_line else None:
            return self._leave_out("\n", line.end())
        if _JSON.match(text, at):
            return self._leave_out(_CLOSING[text[at]], at + 1)
        if begun := _CALL.match(text, at):
            return self._leave_out(")", begun.end())
        undecided = not self._is_decided(at) and (
            self._named_begun.match(text, at) or self._may_go_on(at, starts_line=starts_line)
        )
        return None if undecided else self._end_of_name(at)

    def _end_of_name(self, at: int) -> int:
        """Behind a tool's name, and the bracket behind it; ``at``: there is none."""
        named = self._named.match(self._text, at)
        if named is None:
            return at
        if closing := _CLOSING.get(named[0][-1]):
            return self._leave_out(closing, named.end())
        self.found = True
        return named.end()

    def _end_of_tag(self, tag: re.Match[str]) -> int:
        if tag["name"] is None:
            self._open = _HEADERS.get(tag[0].strip("<|\uff5c>"), [])[:]
            return tag.end()
        name = tag["name"].lower()
        self.found = self.found or name not in _THOUGHTS
        if not tag["close"] and not tag[0].endswith("/>"):
            self._open = [f"</{name}>"]
        return tag.end()

    def _is_decided(self, at: int) -> bool:
        return self._final or len(self._text) - at > _HELD

    def _may_go_on(self, at: int, *, starts_line: bool) -> bool:
        text = self._text
        if tag := _TAG_BEGUN.match(text, at):
            name = (tag["name"] or "").lower()
            known = self._containers
            return name in known if tag["rest"] else any(one.startswith(name) for one in known)
        begun = _BEGUN.match(text[at:])
        return bool(begun) and (
            starts_line or " " not in text[at:].partition("(")[0] or not text[at].isalpha()
        )

    def _leave_out(self, closing: str, begin: int) -> int:
        self._open, self.found = [closing], True
        self._quote, self._last, self._is_escaped = "", self._text[begin - 1], False
        return begin

    def _skip(self, begin: int) -> int:
        """Leave out up to the end of what has begun; returns where to go on."""
        text, closing = self._text, self._open[-1]
        if len(closing) > 1 or closing == "\n":
            end = re.compile(re.escape(closing), re.IGNORECASE | re.ASCII).search(text, begin)
            if end is None:
                return max(begin, len(text) - len(closing))
            self._open = []
            return end.start() if closing == "\n" else end.end()
        for at in range(begin, len(text)):
            char = text[at]
            if self._quote:
                if not self._is_escaped and char == self._quote:
                    if not self._final and _UNDECIDED_QUOTE.match(text, at + 1):
                        return at
                    if _AFTER_QUOTE.match(text, at + 1):
                        self._quote, self._last = "", char
                self._is_escaped = char == "\\" and not self._is_escaped
            elif self._skip_outside_strings(char):
                return at + 1
        return len(text)

    def _skip_outside_strings(self, char: str) -> bool:
        """Whether a character is the last of what is left out."""
        if char in _QUOTES and self._last in _BEFORE_QUOTE:
            self._quote = _QUOTES[char]
        elif char in _CLOSING and len(self._open) < _DEEPEST:
            self._open.append(_CLOSING[char])
        elif char in self._open:
            # Brackets in it that were not closed end with it.
            while self._open.pop() != char:
                pass
        if not char.isspace() and not (char in _PREFIXES and self._last in _BEFORE_QUOTE):
            self._last = char
        return not self._open
