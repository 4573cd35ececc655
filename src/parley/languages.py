"""Language tags, such as ``en``, ``pt-BR`` and ``es_MX``: which of some languages a tag stands for."""

from __future__ import annotations

from collections.abc import Sequence

from parley.errors import UnsupportedLanguageError

DETECT = "auto"
"""The language of speech whose language the model finds out, among the languages of a model that can."""
ALL_LANGUAGES = "all"
"""In a model's parameter ``languages``: every language of its weights."""


def primary_language(tag: str) -> str:
    """The language of a tag without its region: "en" of "en-GB"."""
    return tag.replace("_", "-").partition("-")[0].lower()


def without_region(tag: str) -> str:
    """The language of a tag; a tag that has none, as ``-``, as it is: an empty one would name no language."""
    return primary_language(tag) or tag


def find_language(tag: str, known: Sequence[str]) -> str | None:
    """The one of ``known`` that a tag stands for, as it is spelled there; None: there is none.

    It is the tag itself, in any case and with either separator; else its language without a region; else
    the first one of the same language.
    """
    same = [own for own in known if primary_language(own) == primary_language(tag)]
    for wanted in (_canonical(tag), primary_language(tag)):
        for own in same:
            if _canonical(own) == wanted:
                return own
    return same[0] if same else None


def only_language(languages: Sequence[str]) -> str:
    """The language of all that a model writes; empty: it understands several, or finds the language out."""
    return languages[0] if len(languages) == 1 and languages[0] != DETECT else ""


def understood_language(tag: str, known: Sequence[str]) -> str:
    """As :func:`find_language`, for a model that recognises speech.

    An empty tag, as :data:`DETECT`, lets a model that can find the language out; others take their first.

    Raises:
        UnsupportedLanguageError: the model does not understand the language.
    """
    if tag in ("", DETECT):
        found = DETECT if DETECT in known else next(iter(known), None)
    else:
        found = find_language(tag, known)
    if found is None:
        raise UnsupportedLanguageError(f"language {tag!r} is not understood; only {', '.join(known)}")
    return found


def _canonical(tag: str) -> str:
    return tag.replace("_", "-").lower()
