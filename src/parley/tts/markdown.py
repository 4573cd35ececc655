"""Markdown as it is said: its words without its marks, also while it is being written."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

from parley.tts.text import TextSegmenter

# At the beginning of a line: quotes, bullets, headings, and the box of a task.
_LINE_MARKS = re.compile(r"[ \t>#*+=_|:~`\u2022-]*")
_PREFIX = re.compile(r"(?:[ \t]*(?:>(?![\d=])|(?:[-*+\u2022]|#{1,6})[ \t]+(?:\[[ xX]\][ \t]+)?))*[ \t]*")
_PREFIX_BEGUN = re.compile(r"[ \t>#*+\u2022\[\]xX-]*")
_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,}(?!~))[^`\n]*(?:\n|$)")
_SPACES = re.compile(r"[ \t]*")
_CLOSING_MARKS = re.compile(r"#+[ \t]*")
_LABEL = re.compile(r"\[([^\[\]\n]{0,200})(\]?)")
_TARGET = re.compile(
    r"\([ \t]*(?![ \t])<?[^\s()<>]*(?:\([^\s()]*\)[^\s()]*)*>?(?:[ \t]+\"[^\"\n]*\")?[ \t]*\)"
)
_TARGET_BEGUN = re.compile(
    r"\([ \t]*(?![ \t])<?[^\s()<>]*(?:\([^\s()]*(?:\)[^\s()]*)?)*>?[ \t]*(?:\"[^\"\n]*\"?[ \t]*)?"
)
_REFERENCE = re.compile(r"\[[^\[\]\n]*\]")
_REFERENCE_BEGUN = re.compile(r"\[[^\[\]\n]*")
_AUTOLINK = re.compile(r"<(https?://(?:www\.)?|mailto:|(?=[^\s<>@]+@))([^\s<>]+)>")
_SCHEME = re.compile(r"https?://(?:www\.)?(?=[^\s.])", re.IGNORECASE)
_SCHEMES = ("http://www.", "https://www.")
# Other angle brackets may hold words: "<your name>".
_HTML = re.compile(
    r"</?(?:a|audio|b|big|blockquote|br|break|center|code|del|div|em|emphasis|font|h[1-6]|hr|i|img|ins|li|mark|"
    r"ol|p|phoneme|pre|prosody|s|say-as|small|span|speak|strong|sub|sup|table|tbody|td|th|thead|tr|u|ul|voice)"
    r"(?:\s[^<>\n]*)?/?>|<!--[^<>\n]*-->",
    re.IGNORECASE,
)
# What is said as it is written. "h" may begin a URL, but not within a word.
_PLAIN = re.compile(
    r"(?:[^*_~`|\\!\[\]<#hH\n\u200d-\u3040\u3190-\u319f\u31c0-\u31ef\u4dc0-\u4dff\ua490-\ua4cf\ua828-\ua83f"
    r"\uaa77-\uaa79\ufd40-\ufdff\ufe00-\ufe0f\uffe0-\uffff\U00010000-\U0010ffff]|(?<=[a-zA-Z0-9])[hH])+"
)
_HELD = 200
"""Characters of a link's text or an HTML tag that are waited for."""
_HELD_TARGET = 2_000
_ESCAPED = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~\n")


def without_markdown(text: str) -> str:
    """What is said of a whole text."""
    reader = MarkdownFilter()
    return reader.push(text) + reader.finish()


class MarkdownFilter:
    """Leaves out of a text what is not said: the marks of Markdown, the targets of links, HTML, and emoji.

    Cells of tables are parted by commas, and URLs begin with their hosts. Text comes in pieces of any
    size; what is said of it does not depend on them. Marks whose meaning depends on what follows are held
    back until it comes, for a bounded number of characters. Brackets that are no link, and signs that are
    no marks, stay: "[Enter]", "2 * 3", "snake_case", "-5".
    """

    def __init__(self) -> None:
        self.places: list[int] = []
        """For every character that was returned, its index in the written text."""
        self._text = ""  # not yet decided
        self._begin = 0  # its index in the written text
        self._at = 0  # in it
        self._final = False
        self._said: list[str] = []
        self._before = "\n"  # the character before the next one
        self._spaced = True  # what was said last is space, or nothing was
        self._at_line = True  # nothing of the line but space was read
        self._heading = False
        self._row = False  # the line began with a bar
        self._fence = ""
        self._code = ""
        self._emphasized = False
        self._cell = False  # something of the cell was said
        self._bar: int | None = None  # the mark before the next cell, as an index in the written text
        self._marks: dict[str, Callable[[], bool]] = {
            **dict.fromkeys("*_~", self._emphasis),
            "`": self._backticks,
            "|": self._table_cell,
            "\\": self._escape,
            "!": self._image,
            "[": self._label,
            "]": self._target,
            "<": self._angle,
            "#": self._closing_marks,
            **dict.fromkeys("hH", self._scheme),
        }

    def push(self, text: str) -> str:
        """What is said of ``text`` as far as that is decided, after what was held back."""
        return self._read(text)

    def finish(self) -> str:
        """What is said of the text that was held back; no more text follows."""
        self._final = True
        return self._read("")

    def _read(self, text: str) -> str:
        self._text += text
        self._said = []
        while self._at < len(self._text) and self._step():
            pass
        self._begin += self._at
        self._text, self._at = self._text[self._at :], 0
        return "".join(self._said)

    def _step(self) -> bool:
        """Read the next mark or character; False: more text is needed."""
        if self._at_line:
            return self._fence_line() if self._fence else self._line()
        char = self._text[self._at]
        if char == "\n":
            self._skip(1, said="\n")
            self._begin_line()
        elif not self._row and self._bar is None and (plain := _PLAIN.match(self._text, self._at)):
            self._say_all(plain.end() - self._at)
        elif self._fence:
            self._say(1)
        elif self._row and char in " \t":
            return self._space_in_row()
        elif char in self._marks and (char == "`" or not self._code):
            return self._is_known(self._at + 1) and self._marks[char]()
        elif _is_emoji(char):
            self._skip(1, said="" if _joins(char) or self._spaced else " ")
        else:
            self._say(1)
        return True

    def _begin_line(self) -> None:
        self._at_line = True
        self._heading = self._row = self._emphasized = self._cell = False
        self._code, self._bar = "", None

    # --- lines --------------------------------------------------------------------------------

    def _line(self) -> bool:
        match = _LINE_MARKS.match(self._text, self._at)
        assert match is not None
        end = match.end()
        if fence := _FENCE.match(self._text, self._at):
            if not self._is_known(fence.end()) and not fence[0].endswith("\n"):
                return self._wait_for_line()
            self._skip(len(fence[0]))
            self._fence = fence[1]
            return True
        if not self._is_known(end) and end - self._at < _HELD:
            return False
        if self._text[end : end + 1] in ("", "\n"):  # a rule, the line below a heading, or none
            self._skip(end - self._at)
            self._at_line = self._text[end : end + 1] == ""
            return True
        begun = _PREFIX_BEGUN.match(self._text, self._at)
        assert begun is not None
        if not self._is_known(begun.end()) and begun.end() - self._at < _HELD:
            return False
        prefix = _PREFIX.match(self._text, self._at, self._at + _HELD)
        assert prefix is not None
        self._skip(len(prefix[0]))
        self._before = " "
        self._at_line, self._heading = False, "#" in prefix[0]
        self._row = self._text[self._at : self._at + 1] == "|"
        return True

    def _wait_for_line(self) -> bool:
        """False, until a line is too long to be waited for."""
        if len(self._text) - self._at < _HELD:
            return False
        self._at_line = False
        return True

    def _fence_line(self) -> bool:
        """The beginning of a line of code: perhaps its end."""
        rest = self._text[self._at : self._at + _HELD]
        mark = rest.lstrip(" \t")
        line, newline, _ = mark.partition("\n")
        line = line.rstrip(" \t")
        if line and not line.strip(self._fence[0]):
            if not newline and not self._final and len(rest) < _HELD:
                return False
            if len(line) >= len(self._fence):
                self._skip(len(rest) - len(mark) + mark.find("\n") + 1 if newline else len(rest))
                self._fence = ""
                return True
        elif not line and not newline and not self._final and len(rest) < _HELD:
            return False
        self._at_line = False
        return True

    # --- marks in a line ----------------------------------------------------------------------

    def _escape(self) -> bool:
        following = self._following()
        if following in _ESCAPED:
            self._skip(1)
        if following != "\n":
            self._say(1)
        return True

    def _emphasis(self) -> bool:
        char = self._text[self._at]
        run = self._run(char)
        if run is None:
            return False
        before, after = self._before, self._text[self._at + run : self._at + run + 1] or "\n"
        inside = before.isalnum() and after.isalnum()
        product = inside and (before.isdecimal() or after.isdecimal())
        is_sign = (
            (before.isspace() and after.isspace())
            or (char == "_" and inside)
            or (char == "~" and run == 1)
            or (char == "*" and product and not self._emphasized)
        )
        if is_sign:
            self._say(run)
        else:
            self._emphasized = not after.isspace() and not self._emphasized
            self._skip(run)
        return True

    def _backticks(self) -> bool:
        run = self._run("`")
        if run is None:
            return False
        marks = "`" * run
        if not self._code:
            self._code = marks
            self._skip(run)
        elif self._code == marks:
            self._code = ""
            self._skip(run)
        else:
            self._say(run)
        return True

    def _space_in_row(self) -> bool:
        """Space in a row of a table: left out at the ends of cells."""
        match = _SPACES.match(self._text, self._at)
        assert match is not None
        if not self._is_known(match.end()):
            return False
        if not self._cell or self._text[match.end() : match.end() + 1] in ("", "|", "\n"):
            self._skip(len(match[0]))
        else:
            self._skip(len(match[0]), said=" ")
        return True

    def _table_cell(self) -> bool:
        if self._cell:
            self._cell, self._bar = False, self._begin + self._at
        self._skip(1)
        self._before = " "
        return True

    def _image(self) -> bool:
        if self._following() == "[":
            label = _LABEL.match(self._text, self._at + 1)
            assert label is not None
            if not label[2] and not self._is_known(label.end()) and len(label[1]) < _HELD:
                return False
            if label[2] and not self._is_known(label.end()):
                return False
            if self._text[label.end() : label.end() + 1] == "(":
                self._skip(1)
                return True
        self._say(1)
        return True

    def _label(self) -> bool:
        label = _LABEL.match(self._text, self._at)
        assert label is not None
        if not self._is_known(label.end()) and len(label[1]) < _HELD:
            return False
        if label[2] and label[1].startswith("^"):  # a footnote
            self._skip(len(label[0]))
        elif label[2] and self._text[label.end() : label.end() + 1] in ("(", "["):
            self._skip(1)
        else:
            self._say(1)
        return True

    def _target(self) -> bool:
        following = self._following()
        if following not in ("(", "["):
            self._say(1)
            return True
        whole, begun = (_TARGET, _TARGET_BEGUN) if following == "(" else (_REFERENCE, _REFERENCE_BEGUN)
        held = self._text[self._at + 1 : self._at + _HELD_TARGET]
        if match := whole.match(held):
            self._skip(1 + len(match[0]))
            return True
        if not self._final and len(held) < _HELD_TARGET - 1 and begun.fullmatch(held):
            return False
        self._skip(1, said=" ")
        return True

    def _angle(self) -> bool:
        following = self._following()
        if following.isalnum() or following in ("/", "!"):
            if link := _AUTOLINK.match(self._text, self._at):
                self._skip(1 + len(link[1]))
                self._say(len(link[2]))
                self._skip(1)
                return True
            if tag := _HTML.match(self._text, self._at):
                parts = tag[0][:3].lower() == "<br" and not self._spaced
                self._skip(len(tag[0]), said=" " if parts else "")
                return True
            rest = self._text[self._at + 1 : self._at + _HELD]
            if not self._final and len(rest) < _HELD - 1 and not any(mark in rest for mark in "<>\n"):
                return False
        self._say(1)
        return True

    def _closing_marks(self) -> bool:
        match = _CLOSING_MARKS.match(self._text, self._at)
        assert match is not None
        is_last = self._heading and self._before.isspace()
        if is_last and not self._is_known(match.end()):
            return False
        if is_last and self._text[match.end() : match.end() + 1] in ("", "\n"):
            self._skip(len(match[0]))
        else:
            self._say(1)
        return True

    def _scheme(self) -> bool:
        """Nothing is said for the beginning of a URL."""
        scheme = None if self._before.isalnum() else _SCHEME.match(self._text, self._at)
        rest = self._text[self._at : self._at + len(_SCHEMES[1])].lower()
        if not self._final and not self._before.isalnum() and any(one.startswith(rest) for one in _SCHEMES):
            return False
        if scheme is None:
            self._say(1)
        else:
            self._skip(len(scheme[0]))
        return True

    # --- reading ------------------------------------------------------------------------------

    def _is_known(self, index: int) -> bool:
        """Whether the character there has come, or the text ends before it."""
        return self._final or index < len(self._text)

    def _following(self) -> str:
        """The character after the next one; empty at the end of the text."""
        return self._text[self._at + 1 : self._at + 2]

    def _run(self, char: str) -> int | None:
        """The length of a run of marks; None: it may go on."""
        end = self._at
        while end < len(self._text) and self._text[end] == char:
            end += 1
        return end - self._at if self._is_known(end) or end - self._at >= _HELD else None

    def _say_all(self, count: int) -> None:
        """Say characters that are no marks, outside of tables; quicker than :meth:`_say`."""
        said = self._text[self._at : self._at + count]
        self._said.append(said)
        self.places += range(self._begin + self._at, self._begin + self._at + count)
        self._cell = self._cell or not said.isspace()
        self._spaced = said[-1].isspace()
        self._at += count
        self._before = said[-1]

    def _say(self, count: int) -> None:
        for _ in range(count):
            self._skip(1, said=self._text[self._at])

    def _skip(self, count: int, said: str = "") -> None:
        """Read on, and say ``said``, of at most one character, for it."""
        if said and not said.isspace():
            if self._bar is not None:
                self._said += ", "
                self.places += (self._bar, self._bar)
                self._bar = None
            self._cell = True
        if said and not (said in " \t" and self._bar is not None):
            self._said.append(said)
            self._spaced = said.isspace()
            self.places.append(self._begin + self._at)
        self._at += count
        self._before = self._text[self._at - 1] if count else self._before


def _is_emoji(char: str) -> bool:
    """Whether a character is a picture, or changes one; "°", "№" and "㎏" are not."""
    if char < "\u200d":
        return False
    is_picture = char >= "\u2190" and unicodedata.category(char) == "So" and not "\u3200" <= char <= "\u33ff"
    return is_picture or _joins(char)


def _joins(char: str) -> bool:
    return (
        char in "\u200d\u20e3"
        or "\ufe00" <= char <= "\ufe0f"
        or "\U0001f3fb" <= char <= "\U0001f3ff"
        or "\U000e0020" <= char <= "\U000e007f"
    )


class MarkdownSegmenter:
    """Cuts Markdown into segments of what is said, while it is being written; see :class:`TextSegmenter`."""

    def __init__(self) -> None:
        self._filter = MarkdownFilter()
        self._segmenter = TextSegmenter()
        self._written = 0
        self.said = ""
        """What is said of the text, as far as that is decided."""

    def push(self, text: str, *, early: bool = False) -> list[str]:
        """The segments that ``text`` completes; see :meth:`TextSegmenter.push`."""
        self._written += len(text)
        return self._segmenter.push(self._add(self._filter.push(text)), early=early)

    def finish(self) -> list[str]:
        """The last segments; no more text follows."""
        return [*self._segmenter.push(self._add(self._filter.finish())), *self._segmenter.finish()]

    def finish_cut(self) -> tuple[list[str], int]:
        """Like :meth:`finish`, for text that was cut off: see :meth:`TextSegmenter.finish_cut`.

        Returns:
            The last segments, and how many characters at the end of the written text are not spoken.
        """
        segments = self._segmenter.push(self._add(self._filter.finish()))
        last, unspoken = self._segmenter.finish_cut()
        said = len(self.said) - len(unspoken)
        begin = self.written_span(said, said)[0] if unspoken else self._written
        return [*segments, *last], self._written - begin

    def written_span(self, start: int, end: int) -> tuple[int, int]:
        """The half-open span in the written text of one in what is said; empty behind the end."""
        places = self._filter.places
        begin = places[start] if start < len(places) else self._written
        end = min(end, len(places))
        return begin, places[end - 1] + 1 if end > start else begin

    def _add(self, said: str) -> str:
        self.said += said
        return said
