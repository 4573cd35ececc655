"""Matches as Python's ``re`` does, by backtracking, and counts its steps: the same number on every machine.

It reads the tree that ``re`` itself compiles. Groups, branches, repeats and looks around are what patterns of
Parley use; for anything else it raises NotImplementedError.
"""

import re
from re import _constants as op
from re import _parser as parser

_CATEGORIES = {
    op.CATEGORY_DIGIT: str.isdecimal,
    op.CATEGORY_NOT_DIGIT: lambda char: not char.isdecimal(),
    op.CATEGORY_SPACE: str.isspace,
    op.CATEGORY_NOT_SPACE: lambda char: not char.isspace(),
    op.CATEGORY_WORD: lambda char: char.isalnum() or char == "_",
    op.CATEGORY_NOT_WORD: lambda char: not (char.isalnum() or char == "_"),
}
_SAMPLES = "a1 _-.,:;'\"@/+~&*`[](){}$!?=%#\n\x00Aé\u2013\u3002"
_CHARACTERS = (op.LITERAL, op.NOT_LITERAL, op.IN, op.ANY)


class CountingMatcher:
    """One pattern.

    Args:
        pattern: A compiled one.
    """

    def __init__(self, pattern):
        self.tree = parser.parse(pattern.pattern, pattern.flags)
        self._ignores_case = bool(pattern.flags & re.IGNORECASE)
        self._dot_all = bool(pattern.flags & re.DOTALL)

    def steps(self, text):
        """How many it takes to find all matches in the text, as ``sub`` and ``finditer`` do."""
        self.spans(text)
        return self._count

    def spans(self, text):
        """Where they are, to compare with ``re``."""
        self._text, self._count = text, 0
        at, was_empty, found = 0, False, []
        while at <= len(text):
            self._groups = {}
            # After an empty match, re looks at the same place for one that is not.
            end = self._match(
                self.tree, 0, at, lambda position, barred=at if was_empty else -1: _unless(position, barred)
            )
            if end is None:
                at, was_empty = at + 1, False
            else:
                found.append((at, end))
                at, was_empty = end, end == at
        return found

    def pumps(self):
        """What may make it slow: for each repeat, what it repeats, with and without what comes before."""
        return sorted(set(_pumps(self.tree)) - {""})

    def _match(self, nodes, index, at, then):
        self._count += 1
        if index == len(nodes):
            return then(at)
        kind, value = nodes[index]

        def rest(position):
            return self._match(nodes, index + 1, position, then)

        if kind in _CHARACTERS:
            return rest(at + 1) if self._is(kind, value, at) else None
        return getattr(self, f"_{str(kind).lower()}")(value, at, rest)

    def _is(self, kind, value, at):
        if at >= len(self._text):
            return False
        char = self._text[at]
        forms = {char, char.lower(), char.upper()} if self._ignores_case else {char}
        return any(_fits(kind, value, form, dot_all=self._dot_all) for form in forms if len(form) == 1)

    def _branch(self, value, at, rest):
        ends = (self._match(branch, 0, at, rest) for branch in value[1])
        return next((end for end in ends if end is not None), None)

    def _subpattern(self, value, at, rest):
        number, added, removed, nodes = value
        del added
        before, self._ignores_case = self._ignores_case, self._ignores_case and not removed & re.IGNORECASE

        def close(position):
            inside, self._ignores_case = self._ignores_case, before
            old = self._groups.get(number)
            self._groups[number] = (at, position)
            end = rest(position)
            if end is None:
                self._groups[number] = old
                self._ignores_case = inside
            return end

        end = self._match(nodes, 0, at, close)
        self._ignores_case = before
        return end

    def _max_repeat(self, value, at, rest, *, lazy=False):
        least, most, nodes = value
        if len(nodes) == 1 and nodes[0][0] in _CHARACTERS:
            return self._repeat_character(value, at, rest, lazy=lazy)

        def again(position, times):
            def more(end):
                return None if end == position and times >= least else again(end, times + 1)

            ways = [lambda: rest(position)] if times >= least else []
            if most is op.MAXREPEAT or times < most:
                ways.insert(len(ways) if lazy else 0, lambda: self._match(nodes, 0, position, more))
            return next((end for way in ways if (end := way()) is not None), None)

        return again(at, 0)

    def _min_repeat(self, value, at, rest):
        return self._max_repeat(value, at, rest, lazy=True)

    def _repeat_character(self, value, at, rest, *, lazy):
        least, most, nodes = value
        bound = len(self._text) - at if most is op.MAXREPEAT else min(most, len(self._text) - at)
        if lazy:
            times = 0
            while True:
                if times >= least and (end := rest(at + times)) is not None:
                    return end
                self._count += 1
                if times >= bound or not self._is(*nodes[0], at + times):
                    return None
                times += 1
        times = 0
        while times < bound and self._is(*nodes[0], at + times):
            times += 1
        self._count += times
        ends = (rest(at + fewer) for fewer in range(times, least - 1, -1))
        return next((end for end in ends if end is not None), None)

    def _at(self, value, at, rest):
        text = self._text

        def is_word(position):
            return 0 <= position < len(text) and _CATEGORIES[op.CATEGORY_WORD](text[position])

        holds = {
            op.AT_BEGINNING: at == 0,
            op.AT_BEGINNING_STRING: at == 0,
            op.AT_END: at == len(text) or (at == len(text) - 1 and text[at] == "\n"),
            op.AT_END_STRING: at == len(text),
            op.AT_BOUNDARY: is_word(at - 1) != is_word(at),
            op.AT_NON_BOUNDARY: is_word(at - 1) == is_word(at),
        }[value]
        return rest(at) if holds else None

    def _looks(self, value, at):
        direction, nodes = value
        start = at if direction > 0 else at - nodes.getwidth()[0]
        if start < 0:
            return False
        return (
            self._match(nodes, 0, start, lambda end: end if direction > 0 or end == at else None) is not None
        )

    def _assert(self, value, at, rest):
        return rest(at) if self._looks(value, at) else None

    def _assert_not(self, value, at, rest):
        return None if self._looks(value, at) else rest(at)

    def _groupref(self, value, at, rest):
        start, end = self._groups[value]
        self._count += end - start
        return rest(at + end - start) if self._text.startswith(self._text[start:end], at) else None

    def __getattr__(self, name):
        raise NotImplementedError(name)


def _unless(position, barred):
    return None if position == barred else position


def _fits(kind, value, char, *, dot_all=False):
    if kind is op.LITERAL:
        return ord(char) == value
    if kind is op.NOT_LITERAL:
        return ord(char) != value
    if kind is op.ANY:
        return dot_all or char != "\n"
    negated = value[0][0] is op.NEGATE
    fits = any(_fits_item(*item, char) for item in value[1 if negated else 0 :])
    return fits != negated


def _fits_item(kind, value, char):
    if kind is op.RANGE:
        return value[0] <= ord(char) <= value[1]
    return _CATEGORIES[value](char) if kind is op.CATEGORY else ord(char) == value


def _sample(nodes):
    """A short text that the nodes match, looks around aside."""
    text = ""
    for kind, value in nodes:
        if kind is op.LITERAL:
            text += chr(value)
        elif kind in _CHARACTERS:
            ranges = [chr(item[1][0]) for item in value or () if item[0] is op.RANGE] if kind is op.IN else []
            text += next((char for char in (*_SAMPLES, *ranges) if _fits(kind, value, char)), "a")
        elif kind is op.BRANCH:
            text += _sample(value[1][0])
        elif kind is op.SUBPATTERN:
            text += _sample(value[3])
        elif kind in (op.MAX_REPEAT, op.MIN_REPEAT):
            text += _sample(value[2]) * max(1, value[0])
    return text


def _pumps(nodes, before=""):
    for index, (kind, value) in enumerate(nodes):
        here = before + _sample(nodes[:index])
        if kind in (op.MAX_REPEAT, op.MIN_REPEAT):
            yield from _of_repeat(value[2], here)
            yield from _pumps(value[2], here)
        elif kind is op.SUBPATTERN:
            yield from _pumps(value[3], here)
        elif kind is op.BRANCH:
            for branch in value[1]:
                yield _sample(branch)
                yield from _pumps(branch, here)
        elif kind in (op.ASSERT, op.ASSERT_NOT):
            yield from _pumps(value[1], here)


def _of_repeat(nodes, before):
    once = _sample(nodes)
    yield once
    yield before + once
    yield before + once + " "
    if len(nodes) == 1 and nodes[0][0] in _CHARACTERS:
        # Each kind of character that it may be.
        for char in _SAMPLES:
            if _fits(*nodes[0], char):
                yield char
                yield before + char
