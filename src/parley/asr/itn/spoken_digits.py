"""Spanish and French: figures that are said one after the other, and e-mail addresses.

"cinco cinco cinco uno dos" becomes ``55512``, "juan punto garcía arroba ejemplo punto com"
``juan.garcía@ejemplo.com``. Recognisers that write figures by themselves leave little to do; English has
rules of its own (:mod:`parley.asr.itn.english`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from parley.asr.itn.tokens import Replacement, Token, replace, tokens_of

_RUN = 3
"""A run of this many figures is a number that is spelled out; "uno dos" may be a count."""
_MOST_PARTS = 4
"""Words with a dot between them, before or after the at sign."""


@dataclass(frozen=True)
class SpokenForms:
    """The words of a language."""

    figures: Mapping[str, str]
    at: frozenset[str]
    dot: frozenset[str]
    dash: frozenset[str]
    underscore: tuple[str, str]
    """Two words."""


FORMS: Mapping[str, SpokenForms] = {
    "es": SpokenForms(
        dict(zip("cero uno dos tres cuatro cinco seis siete ocho nueve".split(), "0123456789", strict=True)),
        at=frozenset({"arroba"}),
        dot=frozenset({"punto"}),
        dash=frozenset({"guion", "guión"}),
        underscore=("guion", "bajo"),
    ),
    "fr": SpokenForms(
        dict(zip("zéro un deux trois quatre cinq six sept huit neuf".split(), "0123456789", strict=True)),
        at=frozenset({"arobase", "arrobase"}),
        dot=frozenset({"point"}),
        dash=frozenset({"tiret"}),
        underscore=("tiret", "bas"),
    ),
}


def rules_of(language: str) -> Sequence[Callable[[str], str]]:
    """The rules of a language of :data:`FORMS`, in their order."""
    forms = FORMS[language]
    return (lambda text: write_addresses(text, forms), lambda text: write_figures(text, forms))


def write_figures(text: str, forms: SpokenForms) -> str:
    """Write runs of at least three figures that only space or a comma parts."""
    tokens = tokens_of(text)
    found: list[Replacement] = []
    at = 0
    while at < len(tokens):
        end = at
        while end < len(tokens) and _figure(tokens[end], forms) and (end == at or tokens[end].near):
            end += 1
        if end - at >= _RUN:
            found.append(Replacement(at, end, "".join(_figure(one, forms) for one in tokens[at:end])))
        at = max(end, at + 1)
    return replace(text, tokens, found) if found else text


def write_addresses(text: str, forms: SpokenForms) -> str:
    """Write e-mail addresses: a name, the word for the at sign, and a host with at least one dot."""
    tokens = tokens_of(text)
    found: list[Replacement] = []
    for at, token in enumerate(tokens):
        if token.word not in forms.at or not token.close or (found and at < found[-1].end):
            continue
        first, name = _name_before(tokens, at, forms)
        end, host = _host_after(tokens, at + 1, forms)
        is_apart = not found or first >= found[-1].end  # "a arroba b punto c arroba d punto e": no word twice
        if name and "." in host and is_apart and "@" not in name + host:
            found.append(Replacement(first, end, f"{name}@{host}"))
    return replace(text, tokens, found) if found else text


def _figure(token: Token, forms: SpokenForms) -> str:
    raw = token.raw
    return raw if len(raw) == 1 and raw.isdecimal() else forms.figures.get(token.word, "")


def _joint(token: Token, forms: SpokenForms) -> str:
    """The sign between two parts of an address that a token stands for, or empty."""
    return "." if token.word in forms.dot else "-" if token.word in forms.dash else ""


def _name_before(tokens: Sequence[Token], at: int, forms: SpokenForms) -> tuple[int, str]:
    """Where the name before the at sign begins, and the name; empty: there is none."""
    first, name = at, ""
    for _ in range(_MOST_PARTS):
        if first == 0 or _joint(tokens[first - 1], forms):
            return at, ""
        part, first = _part(tokens[first - 1], forms), first - 1
        name = part + name
        if first < 2 or not tokens[first].close or not tokens[first - 1].close:
            return first, name
        if tuple(one.word for one in tokens[first - 2 : first]) == forms.underscore:
            name, first = f"_{name}", first - 2
        elif joint := _joint(tokens[first - 1], forms):
            name, first = joint + name, first - 1
        else:
            return first, name
    return at, ""


def _host_after(tokens: Sequence[Token], at: int, forms: SpokenForms) -> tuple[int, str]:
    """Where the host after the at sign ends (exclusive), and the host; empty: there is none."""
    host = ""
    for _ in range(_MOST_PARTS):
        if at >= len(tokens) or not tokens[at].close or _joint(tokens[at], forms):
            return at, ""
        host, at = host + _part(tokens[at], forms), at + 1
        if at + 1 >= len(tokens) or not tokens[at].close or not (joint := _joint(tokens[at], forms)):
            return at, host
        host, at = host + joint, at + 1
    return at, ""


def _part(token: Token, forms: SpokenForms) -> str:
    return _figure(token, forms) or token.word
