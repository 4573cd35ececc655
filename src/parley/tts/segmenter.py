"""Cuts a text that is still being written into segments that can be spoken."""

from __future__ import annotations

import re
from dataclasses import dataclass

from parley.tts.plain_text import has_words

# Quotation marks and brackets that close, and those that open.
_CLOSING = "[\"'\u201d\u2019)\\]]*"
_OPENING = "\"'\u201c\u2018(["
# The last alternatives are the marks of Chinese and Japanese, which no space follows.
_SENTENCE_END = re.compile(rf"(?<![.!?\u2026])[.!?\u2026]+{_CLOSING}(?=\s)|[\u3002\uff01\uff1f]|\n")
_CLAUSE_END = re.compile(
    rf"[,;:]{_CLOSING}(?=\s)|[\uff0c\u3001\uff1b\uff1a]|\s[\u2013\u2014-](?=\s)|\u2014(?=\w)"
)
_LAST_WORD = re.compile(r"(?<!\S)(\S+)$")
_ENDING = re.compile(rf"[.!?\u2026\u3002\uff01\uff1f]{_CLOSING}\s*")

# A full stop after these does not end a sentence ...
_ABBREVIATION = re.compile(
    "mr|mrs|ms|dr|prof|st|sr|jr|nr|vs|approx|fig|vol|dept|gen|col|sgt|capt|hon|rev|jan|feb|mar|apr|jun|jul|"
    r"aug|sept?|oct|nov|dec|mon|tues?|wed|thu(?:rs?)?|fri|e\.g|i\.e"
)
# ... and after these only if a capital letter follows.
_MAYBE_LAST = re.compile(r"etc|inc|ltd|co|corp|a\.m|p\.m|am|pm|u\.s|u\.k")
_NUMBERED_ITEM = re.compile(r"(?<!\s)\s*\d{1,3}")


@dataclass(frozen=True)
class SegmentLimits:
    """How long segments may become, in characters."""

    first_clause: int = 12
    """The first segment ends at a comma once it is this long."""
    first_longest: int = 60
    """The first segment ends between two words once it is this long."""
    clause: int = 100
    """Later segments end at a comma once they are this long."""
    longest: int = 200
    """Later segments end between two words once they are this long."""


class TextSegmenter:
    """Takes text as it streams in and gives back whole segments.

    The first segment is cut early, so that speech can begin; the others are sentences. Nothing
    is cut inside numbers ("3.5", "14:05"), after abbreviations ("Dr.", "e.g."), or in front of
    a word that is not complete yet. Segments have no white space at their ends, and each has at
    least one letter or digit.
    """

    def __init__(self, limits: SegmentLimits | None = None) -> None:
        self._limits = limits or SegmentLimits()
        self._text = ""
        self._first = True

    def push(self, text: str) -> list[str]:
        """The segments that are complete now that ``text`` has followed."""
        self._text += text
        segments = []
        while (end := self._find_end()) is not None:
            segments.append(self._text[:end].strip())
            self._text = self._text[end:]
            self._first = False
        return segments

    def finish(self) -> list[str]:
        """The last segment, if there is one; the segmenter then begins anew."""
        rest = self._text.strip()
        self._text = ""
        self._first = True
        return [rest] if has_words(rest) else []

    def finish_cut(self) -> tuple[list[str], str]:
        """As :meth:`finish`, of text that was cut off anywhere: a sentence that is not whole is not spoken.

        If it is the first, its whole words are.

        Returns:
            The last segment, if there is one, and the end of the text that is not spoken.
        """
        text, first = self._text, self._first
        end = max((match.end() for match in _ENDING.finditer(text)), default=0)
        if first and not has_words(text[:end]):
            end = max(text.rfind(" "), text.rfind("\n"), 0)
        self._text = text[:end]
        return self.finish(), text[end:]

    def _find_end(self) -> int | None:
        text = self._text
        clause, longest = (
            (self._limits.first_clause, self._limits.first_longest)
            if self._first
            else (self._limits.clause, self._limits.longest)
        )
        ends = [match.end() for match in _SENTENCE_END.finditer(text) if self._ends_sentence(match)]
        ends += [match.end() for match in _CLAUSE_END.finditer(text) if match.end() >= clause]
        end = min((end for end in ends if has_words(text[:end])), default=longest + 1)
        if end <= longest:
            return end
        if len(text) <= longest:
            return None
        # Never inside a word, unless the "word" alone is longer than a segment may be.
        space = max(text.rfind(" ", 0, longest), text.rfind("\t", 0, longest))
        end = space if has_words(text[: max(space, 0)]) else longest
        return end if has_words(text[:end]) else None

    def _ends_sentence(self, match: re.Match[str]) -> bool:
        if match.group()[0] != "." or match.group().startswith(".."):
            return True
        before = self._text[: match.start()]
        word = _LAST_WORD.search(before)
        if word is None:
            return True
        token = word.group(1).lower().lstrip(_OPENING)
        if _ABBREVIATION.fullmatch(token) or _is_initial(word.group(1)):
            return False
        if _NUMBERED_ITEM.fullmatch(before):  # "1. First, ..."
            return False
        if _MAYBE_LAST.fullmatch(token):
            following = self._text[match.end() :].lstrip()
            return bool(following) and following[0].isupper()
        return True


def _is_initial(word: str) -> bool:
    """The "J" of "J. Smith"; "I" is a word of its own."""
    return len(word) == 1 and word.isalpha() and word.isupper() and word != "I"
