"""What the grammars read wrongly, written so that they read it well."""

from __future__ import annotations

import re
from collections.abc import Callable

_TELEPHONE = re.compile(r"(?<![\w.,])(?:\+\d{1,3}(?:[ .]\(?\d{2,5}\)?){2,5}|\d{3} \d{3} \d{4})(?![\w,]|\.\d)")
_SEPARATORS = re.compile(r"[ .()]+")


def _figures(match: re.Match[str]) -> str:
    return ", ".join(" ".join(group) for group in match.groups())


_RULES: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    # Nobody says "H T T P S colon slash slash".
    (re.compile(r"\bhttps?://(?:www\.)?", re.IGNORECASE), ""),
    # Local telephone numbers: figure by figure.
    (re.compile(r"(?<![\w.,:/\-])(?<!\d\) )(?<!\d )(\d{3})-(\d{4})(?![\w\-])"), _figures),
    # "9-5", "$5-10", "10-20 people", also with a dash; but not dates, or "5 - 3".
    (
        re.compile(
            r"(?<![\w.,:/\-\u2013+$€£¥])(?<!\d\) )(?<!\d )([$€£¥]?)(\d{1,4})[-\u2013](\d{1,4})"
            r"(?![\w.:/\-\u2013]*[\d:/\-\u2013])"
        ),
        r"\1\2 to \1\3",
    ),
    (re.compile(r"(?:(?<!\s)\s+)?&\s*"), " and "),
    (re.compile(r"(?<![\w/])24/7(?![\w/])"), "twenty-four seven"),
    (re.compile(r"(?<![\w/])50/50(?![\w/])"), "fifty-fifty"),
    (re.compile(r"(?<![\w/])9/11(?![\w/])"), "nine eleven"),
    (re.compile(r"~\s*(?=\d)"), "approximately "),
    # Emphasis that a language model writes: the signs are not said.
    (re.compile(r"(\*\*|\*|__|`)(?=\S)(.+?)(?<=\S)\1"), r"\2"),
)


def rewrite_english(text: str) -> str:
    """English text as ``nemo_text_processing`` reads it best."""
    text = _TELEPHONE.sub(_one_by_one, text)
    for found, wanted in _RULES:
        text = found.sub(wanted, text)
    return text


def _one_by_one(match: re.Match[str]) -> str:
    """A telephone number with hyphens if it is North American, else in one piece: its figures are read."""
    parts = [part for part in _SEPARATORS.split(match[0]) if part]
    north_american = [len(part) for part in parts][-3:] == [3, 3, 4] and len(parts) <= 4
    return ("-" if north_american else "").join(parts)
