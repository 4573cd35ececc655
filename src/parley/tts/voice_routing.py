"""Which of several synthesizers a voice belongs to.

One rule for all who offer or take the name of a voice: sessions, stages, and the gateway's APIs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from parley.errors import UnsupportedLanguageError, UnsupportedVoiceError

SEPARATOR = "/"
"""Between a synthesizer's name and a voice's in a name that is qualified: ``kokoro/af_heart``."""


class Speaks(Protocol):
    """The part of :class:`parley.engines.base.Synthesizer` that the choice depends on."""

    @property
    def voices(self) -> Sequence[str] | None:
        """Names of all voices; None: only the synthesizer itself can tell."""
        ...

    @property
    def languages(self) -> Sequence[str]:
        """What it speaks."""
        ...


Lineup: TypeAlias = Sequence[tuple[str, Speaks]]
"""Synthesizers by name, in order of preference."""


@dataclass(frozen=True)
class Route:
    """Who speaks, and with which voice."""

    index: int
    """Of the synthesizer."""
    voice: str | None
    """As the synthesizer calls it; None: its default."""
    certain: bool = True
    """Whether it has the voice for certain; otherwise it has to be asked."""


def find_route(lineup: Lineup, voice: str | None, language: str | None) -> Route:
    """The first synthesizer that has the voice and speaks the language.

    Args:
        lineup: the synthesizers; at least one.
        voice: its name, or the synthesizer's and its own (``kokoro/af_heart``); None: the default.
        language: a dialect ("en-GB") is spoken by who speaks the language; None: any.

    Raises:
        UnsupportedLanguageError: none of them, or not this voice, speaks the language.
        UnsupportedVoiceError: none of them has the voice.
    """
    speaking = [
        index for index, (_, one) in enumerate(lineup) if language is None or speaks(one.languages, language)
    ]
    if not speaking:
        raise UnsupportedLanguageError(
            f"language {language!r} is not spoken; only {', '.join(spoken_languages(lineup))}"
        )
    if voice is None:
        return Route(speaking[0], None)
    candidates, name = _candidates(lineup, voice)
    having = [index for index in candidates if name in (lineup[index][1].voices or ())]
    for index in having:
        if index in speaking:
            return Route(index, name)
    if having:
        only = ", ".join(lineup[having[0]][1].languages)
        raise UnsupportedLanguageError(f"voice {voice!r} does not speak {language!r}; only {only}")
    for index in candidates:
        if index in speaking and lineup[index][1].voices is None:
            return Route(index, name, certain=False)
    raise UnsupportedVoiceError(f"voice {voice!r}; possible are {', '.join(voice_names(lineup))}")


def _candidates(lineup: Lineup, voice: str) -> tuple[list[int], str]:
    """The synthesizers that are meant, and the name that they have to know."""
    owner, _, own = voice.partition(SEPARATOR)
    named = [index for index, (name, _) in enumerate(lineup) if name == owner]
    return (named, own) if own and named else (list(range(len(lineup))), voice)


def voice_names(lineup: Lineup) -> list[str]:
    """All names that can be given, the default first; without those of synthesizers that have to be asked."""
    lists = [(name, one.voices or ()) for name, one in lineup]
    return [name for names in qualify(lists) for name in names]


def qualify(lists: Sequence[tuple[str, Sequence[str]]]) -> list[list[str]]:
    """The voices of each synthesizer, with its name before those that one before it has too."""
    seen: set[str] = set()
    qualified: list[list[str]] = []
    for owner, voices in lists:
        qualified.append([f"{owner}{SEPARATOR}{voice}" if voice in seen else voice for voice in voices])
        seen.update(voices)
    return qualified


def spoken_languages(lineup: Lineup) -> list[str]:
    """What any of them speaks, each once."""
    return list(dict.fromkeys(language for _, one in lineup for language in one.languages))


def speaks(languages: Sequence[str], language: str) -> bool:
    """Whether a language, or that of which it is a dialect, is among ``languages``."""
    return language in languages or primary_language(language) in languages


def primary_language(language: str) -> str:
    """The language of a tag without its region: "en" of "en-GB"."""
    return language.replace("_", "-").partition("-")[0].lower()
