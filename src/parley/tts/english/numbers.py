"""Figures that nothing else has written out, in words."""

from __future__ import annotations

_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_SCALES = ((10**9, "billion"), (10**6, "million"), (10**3, "thousand"), (100, "hundred"))
_LONGEST = 12
"""Figures of a number; longer ones are read figure by figure, as are those that begin with zero."""


def in_words(figures: str) -> list[str]:
    """The words for a run of decimal digits."""
    if len(figures) > _LONGEST or (len(figures) > 1 and figures[0] == "0"):
        return [_ONES[int(figure)] for figure in figures]
    return _cardinal(int(figures))


def _cardinal(number: int) -> list[str]:
    for scale, name in _SCALES:
        if number >= scale:
            rest = number % scale
            return [*_cardinal(number // scale), name, *(_cardinal(rest) if rest else [])]
    if number < len(_ONES):
        return [_ONES[number]]
    tens, ones = divmod(number, 10)
    return [_TENS[tens - 2], *([_ONES[ones]] if ones else [])]
