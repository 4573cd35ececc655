"""E-mail and web addresses: "john dot smith at example dot com" becomes ``john.smith@example.com``.

A host is looked for first; only a known top domain makes one, so that "noon dot the" is none. What stands
before "at" becomes part of an e-mail address if it is built like a name (dots, figures, letters), or if
something else says that mail is meant; "we met at example dot com" is about a web address.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from parley.asr.itn.english.numbers import letter_at, number_at
from parley.asr.itn.tokens import Replacement, Token, replace, tokens_of

DOMAINS = frozenset(
    (
        "com org net edu gov mil int info biz io ai app dev co uk de fr nl es pl se dk fi cz ch ca au nz "
        "ie jp br cn kr mx za pt gr hu ro tv cc eu online shop store tech cloud blog xyz"
    ).split()
)
WORD_DOMAINS = frozenset("it in at be me us is no to my so am name".split())
"""Top domains that are words as well: they end an e-mail address, but make no web address."""
MAIL_HOSTS = frozenset(
    (
        "gmail googlemail hotmail outlook yahoo icloud proton protonmail aol gmx fastmail live msn yandex "
        "zoho comcast verizon"
    ).split()
)
"""Words before these are a person."""
SPOKEN_HOSTS = {
    ("g", "mail"): "gmail",
    ("hot", "mail"): "hotmail",
    ("i", "cloud"): "icloud",
    ("out", "look"): "outlook",
    ("proton", "mail"): "protonmail",
}
SEPARATORS = {
    "dot": ".",
    "period": ".",
    "underscore": "_",
    "dash": "-",
    "hyphen": "-",
    "minus": "-",
    "plus": "+",
}
"""In the part of an e-mail address before the "at"."""
DASHES = frozenset(("dash", "hyphen", "minus"))
MAIL_WORDS = frozenset(("email", "e-mail", "mail", "address", "contact", "reach", "write", "send"))
"""Words that announce an e-mail address."""
INTRODUCTIONS = frozenset(
    ("is", "it's", "to", "email", "e-mail", "mail", "address", "contact", "write", "yes")
)
"""After these an address begins."""
NO_NAMES = frozenset(
    (
        "a an the this that these those my your his her its our their me you him us them it i we he she "
        "they is are was were be been am pm do does did have has had will would can could should may "
        "might must and or but so if then than as of in on at to for from with by about into over up down "
        "out off near not no yes yeah okay ok please uh um well just here there now today tomorrow home "
        "work school noon midnight night look looks looking see go goes going meet met find found live "
        "lives stay stays arrive check buy bought order ordered book booked work works worked shop read "
        "click visit store site website page web online available everything something anything nothing "
        "one spelled spelt e email e-mail mail address contact write send reach put get make it's that's "
        "what's what where when who how why which"
    ).split()
)
"""Words that are no part of an address, as far as they stand alone."""

_NAME = re.compile(r"[a-z0-9]+(?:[._-][a-z0-9]+)*")
_AT = frozenset(("at", "@"))
_LONGEST = 24
"""Tokens before the "at" that are looked at."""
_LOOK_BACK = 8
"""Tokens in which mail may have been spoken of."""
_FIRST_NAMES = 2
"""Words that may stand before a name without a sign between them."""


class _Piece(NamedTuple):
    """A part of an address."""

    text: str
    end: int
    plain: bool = False
    """Whether it is an ordinary single word."""
    signs: bool = False
    """Whether it has dots, dashes and the like."""


def write_addresses(text: str) -> str:
    """Write the addresses of a text."""
    tokens = tokens_of(text)
    found: list[Replacement] = []
    at = 0
    while at < len(tokens):
        alone = _stands_alone(tokens, at)
        host = _Piece("", at) if alone else _host_at(tokens, at, DOMAINS, with_figures=False)
        one = _mail_around(tokens, at, found[-1].end if found else 0) or _web_at(tokens, at, host)
        if one:
            found.append(one)
        # Within what is no host none begins; but its last letter may begin "g mail".
        at = one.end if one else max(at + 1, 0 if host.text else host.end - 1)
    return replace(text, tokens, found) if found else text


def _mail_around(tokens: Sequence[Token], at: int, free: int) -> Replacement | None:
    """The e-mail address whose "at" is this token; tokens from ``free`` on may belong to it."""
    if tokens[at].word not in _AT or at == 0 or not tokens[at].near:
        return None
    begin = at + 1
    if begin < len(tokens) and tokens[begin].word == "sign":
        begin += 1
    host = _host_at(tokens, begin, DOMAINS | WORD_DOMAINS, with_figures=True)
    if not host.text:
        return None
    sure = tokens[at].word == "@" or begin > at + 1 or host.text.split(".")[0] in MAIL_HOSTS
    if host.text.rpartition(".")[2] in WORD_DOMAINS and host.end < len(tokens) and tokens[host.end].close:
        return None  # "at the dot in the middle"
    for first in range(max(free, at - _LONGEST), at):
        name = _name_at(tokens, first, at)
        if name and name.end == at and _is_person(tokens, first, name, sure=sure):
            begin, said = (first, name.text) if name.signs else _with_first_names(tokens, first, free, name)
            return Replacement(begin, host.end, f"{said}@{host.text}")
    return None


def _is_person(tokens: Sequence[Token], first: int, name: _Piece, *, sure: bool) -> bool:
    """Whether an address is meant, and not a place."""
    if not name.plain and not name.text.isdecimal():
        return True
    before = [token.word for token in tokens[max(first - _LOOK_BACK, 0) : first]]
    said = first == 0 or before[-1] in INTRODUCTIONS or bool(MAIL_WORDS.intersection(before))
    return sure or (said and not name.text.isdecimal())


def _with_first_names(tokens: Sequence[Token], first: int, free: int, name: _Piece) -> tuple[int, str]:
    """With the words before it, if these begin where an address begins: "is john smith at"."""
    begin = first
    while (
        begin > free and first - begin < _FIRST_NAMES and tokens[begin].close and _is_name(tokens[begin - 1])
    ):
        begin -= 1
    if begin != 0 and (begin == free or tokens[begin - 1].word not in INTRODUCTIONS):
        return first, name.text
    before = "".join(token.word for token in tokens[begin:first])
    # Some say a name, and then spell it.
    return begin, name.text if before == name.text else before + name.text


def _is_name(token: Token) -> bool:
    return bool(_NAME.fullmatch(token.word)) and token.word not in NO_NAMES and token.word not in SEPARATORS


def _name_at(tokens: Sequence[Token], first: int, end: int) -> _Piece | None:
    """The longest name of an e-mail address from a token on: parts with signs between them."""
    text, at, plain, signs = "", first, True, False
    while True:
        part = _part_at(tokens, at, end)
        if part is None or (at > first and not tokens[at].near):
            return None
        text, at = text + part.text, part.end
        plain = plain and part.plain
        if at >= end - 1 or tokens[at].word not in SEPARATORS or not tokens[at].near:
            break
        text, at, plain, signs = text + SEPARATORS[tokens[at].word], at + 1, False, True
    if _stands_alone(tokens, first) and tokens[first + 1].word not in SEPARATORS:
        return None
    return _Piece(text, at, plain, signs)


def _stands_alone(tokens: Sequence[Token], at: int) -> bool:
    """Whether this is a word that is no part of an address; "a" may begin what is spelled."""
    if tokens[at].word not in NO_NAMES:
        return False
    return len(tokens[at].word) > 1 or at + 1 == len(tokens) or letter_at(tokens, at + 1) is None


def _part_at(tokens: Sequence[Token], first: int, end: int) -> _Piece | None:
    """Letters and figures, or a word with letters before it or figures after it: "j smith ninety nine"."""
    spelled = _units_at(tokens, first, end, figures=True)
    at = spelled.end if spelled else first
    text = spelled.text if spelled else ""
    word = tokens[at].word if at < end and (at == first or tokens[at].close) else ""
    joins = not any(character.isdecimal() for character in text)
    if not word or not joins or word in SEPARATORS or word in _AT or not _NAME.fullmatch(word):
        return _Piece(text, at) if spelled else None
    figures = _units_at(tokens, at + 1, end, letters=False)
    if figures is None:
        return _Piece(text + word, at + 1, plain=not spelled and word.isalpha())
    return _Piece(text + word + figures.text, figures.end)


def _units_at(
    tokens: Sequence[Token], first: int, end: int, *, letters: bool = True, figures: bool = True
) -> _Piece | None:
    """Letters and figures that are said one after the other."""
    text, at = "", first
    while at < end and (at == first or tokens[at].near):
        unit = (letters and letter_at(tokens, at)) or (figures and number_at(tokens, at)) or None
        if unit is None or unit.end > end:
            break
        text, at = text + unit.text, unit.end
    return _Piece(text, at) if text else None


def _web_at(tokens: Sequence[Token], first: int, host: _Piece) -> Replacement | None:
    """The web address that begins at a token, with this host."""
    if not host.text:
        return None
    text, at = host.text, host.end
    while at + 1 < len(tokens) and tokens[at].word == "slash" and tokens[at].close:
        part = _label_at(tokens, at + 1, with_figures=True)
        if not part.text:
            break
        text, at = f"{text}/{part.text}", part.end
    return Replacement(first, at, text) if at > first + 1 else None


def _host_at(tokens: Sequence[Token], first: int, domains: frozenset[str], *, with_figures: bool) -> _Piece:
    """The longest host from a token on: labels with dots between them, and a known top domain.

    Without text there is none in the tokens that were looked at, up to its end.
    """
    text, at, longest = "", first, None
    while True:
        label = _label_at(tokens, at, with_figures=with_figures)
        text, at = text + label.text, label.end
        if not label.text:
            break
        if "." in text and text.rpartition(".")[2] in domains:
            longest = _Piece(text, at)
        if at >= len(tokens) - 1 or tokens[at].word not in ("dot", "period") or not tokens[at].close:
            break
        text, at = text + ".", at + 1
    return longest or _Piece("", at)


def _label_at(tokens: Sequence[Token], first: int, *, with_figures: bool) -> _Piece:
    """A word, or letters and figures, with dashes between them: what stands between two dots.

    Without text there is none in the tokens that were looked at, up to its end.
    """
    text, at = "", first
    while at < len(tokens):
        part = _atom_at(tokens, at, with_figures=with_figures)
        if part is None:
            break
        text, at = text + part.text, part.end
        if at >= len(tokens) - 1 or tokens[at].word not in DASHES:
            return _Piece(text, at)
        text, at = text + "-", at + 1
    return _Piece("", at)


def _atom_at(tokens: Sequence[Token], at: int, *, with_figures: bool) -> _Piece | None:
    for spoken, written in SPOKEN_HOSTS.items():
        if tuple(token.word for token in tokens[at : at + len(spoken)]) == spoken:
            return _Piece(written, at + len(spoken))
    units = _units_at(tokens, at, len(tokens), figures=with_figures)
    if units:
        return units
    word = tokens[at].word
    if word in SEPARATORS or word in _AT or not _NAME.fullmatch(word):
        return None
    figures = _units_at(tokens, at + 1, len(tokens), letters=False) if with_figures else None
    return _Piece(word + figures.text, figures.end) if figures else _Piece(word, at + 1, plain=True)
