"""Text of speech: what can be spoken, cutting it into segments, and marks for its words."""

from __future__ import annotations

import bisect
import re
import unicodedata
from dataclasses import dataclass

from parley.tts.messages import WordMark

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
# ... and after this only if no number follows: "No. 5".
_NUMBER = re.compile(r"nos?")
_NUMBERED_ITEM = re.compile(r"(?<!\s)\s*\d{1,3}")
# The sign of a number or an amount, not a hyphen or a dash.
_NEGATIVE = re.compile(r"(?<![\w.,)%°\]/-])[-\u2212](?=[$€£¥₹]?\.?\d)")
_MINUS = {"nl": "min", "fr": "moins", "es": "menos", "it": "meno", "pt": "menos"}
_SPACE = re.compile(r"\s*")
_WORD = re.compile(r"\S+")
_FEWEST_WORDS = 4
"""Of a segment that ends within a sentence, early."""
_PARTING = frozenset(
    "am are as at because but by can could did do does for from had has have if in into is may might must of "
    "on should so than that to was were when where which while who will with would".split()
)
"""A speaker may pause before them."""
_BINDING = _PARTING | frozenset(
    "a an and every he her his i it its my no or our she the their these they this those we you your".split()
)
"""They belong to what follows."""
_PLAIN_WORD = re.compile(r"[^\W\d_]+(?:['\u2019-][^\W\d_]+)*")


def plain_text(text: str) -> str:
    """``text`` with a space for every control character, of the same length.

    espeak-ng reads embedded commands after U+0001 and ends at U+0000; nothing is said for any of them.
    """
    return "".join(" " if unicodedata.category(char) in ("Cc", "Cs") else char for char in text)


def with_minus(text: str, language: str) -> tuple[str, list[int]]:
    """``text`` with a word for the sign of negative numbers and amounts, which espeak-ng leaves out of many.

    Returns:
        The text to speak, and the index in ``text`` of each of its characters.
    """
    word = f"{_MINUS.get(language, 'minus')} "
    spoken: list[str] = []
    places: list[int] = []
    signs = {match.start() for match in _NEGATIVE.finditer(text)}
    for index, char in enumerate(text):
        said = word if index in signs else char
        spoken.append(said)
        places += [index] * len(said)
    return "".join(spoken), places


def has_words(text: str) -> bool:
    """Whether there is a letter or digit of any script; a segment without one is not spoken."""
    return any(char.isalnum() for char in text)


def ends_sentence(text: str) -> bool:
    """Whether the text ends with the mark of a sentence's end, perhaps in quotation marks or brackets."""
    return any(match.end() == len(text) for match in _ENDING.finditer(text))


def is_speakable(text: str) -> bool:
    """Whether there is anything but space and punctuation."""
    return any(unicodedata.category(char)[0] in "LNSM" for char in text)


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
    """Cuts streamed text into segments.

    The first segment is cut early, so that speech can begin; the others are sentences. Nothing
    is cut inside numbers ("3.5", "14:05"), after abbreviations ("Dr.", "e.g."), or in front of
    an incomplete word. Segments have no white space at their ends, and each has at
    least one letter or digit.
    """

    def __init__(self, limits: SegmentLimits | None = None) -> None:
        self._limits = limits or SegmentLimits()
        self._text = ""
        self._first = True

    def push(self, text: str, *, early: bool = False) -> list[str]:
        """The segments that ``text`` completes; linear in the length of the text.

        ``early``: one may end after a few words, as the rest comes while they are spoken.
        """
        self._text += text
        segments: list[str] = []
        begin = 0
        while (end := self._find_end(begin, early=early and not segments)) is not None:
            segment = self._text[begin:end].strip()
            begin = end
            if has_words(segment):
                segments.append(segment)
                self._first = False
        self._text = self._text[begin:]
        return segments

    def finish(self) -> list[str]:
        """The last segment, if any; the segmenter then begins anew."""
        rest = self._text.strip()
        self._text = ""
        self._first = True
        return [rest] if has_words(rest) else []

    def finish_cut(self) -> tuple[list[str], str]:
        """Like :meth:`finish`, for text that was cut off anywhere: an incomplete sentence is not spoken.

        Of the first sentence, the complete words are.

        Returns:
            The last segment, if any, and the end of the text that is not spoken.
        """
        text, first = self._text, self._first
        end = max((match.end() for match in _ENDING.finditer(text)), default=0)
        if first and not has_words(text[:end]):
            end = max(text.rfind(" "), text.rfind("\n"), 0)
        self._text = text[:end]
        return self.finish(), text[end:]

    def _find_end(self, begin: int, *, early: bool) -> int | None:
        """Where the segment that begins at ``begin`` ends; None: more text is needed.

        Marks and space without a word end where a segment must, so that they are left out of speech and of
        what is searched again.
        """
        clause, longest = (
            (self._limits.first_clause, self._limits.first_longest)
            if self._first
            else (self._limits.clause, self._limits.longest)
        )
        # No later end is of use, and a mark needs one character behind it: the work for a segment is bounded.
        text = self._text[begin : begin + longest + 1]
        word = next((index for index, char in enumerate(text) if char.isalnum()), longest)
        ends = (m.end() for m in _SENTENCE_END.finditer(text) if m.end() > word and self._is_end(m, begin))
        clauses = (m.end() for m in _CLAUSE_END.finditer(text) if m.end() >= clause and m.end() > word)
        end = min(next(ends, longest + 1), next(clauses, longest + 1))
        if end <= longest:
            return begin + end
        if len(text) <= longest:
            place = _first_words(text) if early else 0
            return begin + place if place else None
        # Never inside a word, unless the "word" alone is longer than a segment may be.
        space = max(text.rfind(" ", 0, longest), text.rfind("\t", 0, longest))
        return begin + (space if space > word else longest)

    def _is_end(self, match: re.Match[str], begin: int) -> bool:
        """Whether a mark in the text from ``begin`` on ends a sentence."""
        if match.group()[0] != "." or match.group().startswith(".."):
            return True
        before = match.string[: match.start()]
        word = _LAST_WORD.search(before)
        if word is None:
            return True
        token = word.group(1).lower().lstrip(_OPENING)
        if _ABBREVIATION.fullmatch(token) or _is_initial(word.group(1)):
            return False
        if _NUMBERED_ITEM.fullmatch(before):  # "1. First, ..."
            return False
        maybe_last, number = _MAYBE_LAST.fullmatch(token), _NUMBER.fullmatch(token)
        if maybe_last or number:
            space = _SPACE.match(self._text, begin + match.end())
            following = self._text[space.end() : space.end() + 1] if space else ""
            return following.isupper() if maybe_last else bool(following) and not following.isdecimal()
        return True


def _first_words(text: str) -> int:
    """Where the first words of a sentence end that can be spoken before the rest is known; 0: nowhere yet."""
    words = list(_WORD.finditer(text))
    for place in range(_FEWEST_WORDS, len(words)):
        last, following = words[place - 1].group(), words[place].group()
        if following in _PARTING and _PLAIN_WORD.fullmatch(last) and last.lower() not in _BINDING:
            return words[place].start()
    return 0


def split_text(text: str, longest: int) -> list[str]:
    """Split a whole text into pieces of about ``longest`` characters at most, after sentences if possible.

    The concatenated pieces are the text. Short sentences stay together: models say them better with
    their surroundings.
    """
    if len(text) <= longest:
        return [text]
    clause = longest * 2 // 3
    segmenter = TextSegmenter(
        SegmentLimits(first_clause=clause, first_longest=longest, clause=clause, longest=longest)
    )
    begins = [0]
    position = 0
    for sentence in [*segmenter.push(text), *segmenter.finish()]:
        position = text.index(sentence, position)
        if position + len(sentence) - begins[-1] > longest and position > begins[-1]:
            begins.append(position)
        position += len(sentence)
    return [text[begin:end] for begin, end in zip(begins, [*begins[1:], len(text)], strict=True)]


def _is_initial(word: str) -> bool:
    """The "J" of "J. Smith"; "I" is a word of its own."""
    return len(word) == 1 and word.isalpha() and word.isupper() and word != "I"


class WordMarker:
    """Assigns one mark to every word of a text, as separated by white space.

    Synthesizers report words of their own: several for ``10:30``, none for a dash, and
    positions that may point at the space before a word. A word without an event of its own
    gets the sample of the one before it.
    """

    def __init__(self, text: str) -> None:
        self._spans = [match.span() for match in _WORD.finditer(text)]
        self._next = 0
        self._at_sample = 0

    def marks_at(self, position: int, at_sample: int) -> list[WordMark]:
        """The marks due when the word at ``position`` (index of a character) begins."""
        # The word that holds the position, or the one after the space that it points at.
        index = bisect.bisect_right(self._spans, position, key=lambda span: span[1])
        if index < self._next or index == len(self._spans):
            return []
        missed = self._marks_until(index)
        self._at_sample = at_sample
        return [*missed, *self._marks_until(index + 1)]

    def remaining_marks(self) -> list[WordMark]:
        """The marks of words that had no event."""
        return self._marks_until(len(self._spans))

    def _marks_until(self, end: int) -> list[WordMark]:
        spans = self._spans[self._next : end]
        self._next = max(self._next, end)
        return [WordMark(start_char=start, end_char=stop, at_sample=self._at_sample) for start, stop in spans]
