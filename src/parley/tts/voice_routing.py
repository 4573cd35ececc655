"""Resolving the name of a voice to one of several synthesizers.

Sessions, stages and the gateway's APIs all use this rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from parley.errors import UnsupportedLanguageError, UnsupportedVoiceError
from parley.languages import find_language

ENGLISH = ("en", "en-us", "en-gb")
"""Languages of a synthesizer that can pronounce English alone."""

Gender: TypeAlias = Literal["", "female", "male"]

SEPARATOR = "/"
"""Between a synthesizer's name and a voice's in a name that is qualified: ``kokoro/af_heart``."""


@dataclass(frozen=True)
class KnownVoice:
    """A voice that a synthesizer always has."""

    name: str
    languages: tuple[str, ...]
    """Tags such as ``en`` or ``en-us``."""
    gender: Gender = ""
    """Empty: not known."""
    description: str = ""
    """For people."""


class Speaks(Protocol):
    """The part of :class:`parley.engines.base.Synthesizer` that the choice depends on."""

    @property
    def voices(self) -> Sequence[str] | None:
        """Names of all voices; None: they are only known at run time."""
        ...

    @property
    def languages(self) -> Sequence[str]:
        """Tags of the languages."""
        ...


Lineup: TypeAlias = Sequence[tuple[str, Speaks]]
"""Synthesizers by name, in order of preference."""


@dataclass(frozen=True)
class Route:
    """The synthesizer and the voice that a name resolves to."""

    index: int
    voice: str | None
    """The synthesizer's own name for it; None: its default."""
    certain: bool = True
    """False: the synthesizer does not list its voices, so that it may lack this one."""


def find_route(lineup: Lineup, voice: str | None, language: str | None) -> Route:
    """The first synthesizer that has the voice and speaks the language.

    Args:
        lineup: at least one synthesizer.
        voice: its name, or the synthesizer's and its own (``kokoro/af_heart``); None: the default.
        language: of a dialect ("en-GB") the language is enough; None: any.

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
    raise UnsupportedVoiceError(f"there is no voice {voice!r}; possible are {', '.join(voice_names(lineup))}")


def check_language(
    voices: Sequence[KnownVoice], voice: str | None, language: str, languages: Sequence[str]
) -> None:
    """Return if a synthesizer speaks a language, with this voice if one is named.

    Raises:
        UnsupportedLanguageError: it does not.
    """
    if not speaks(languages, language):
        raise UnsupportedLanguageError(f"no voice speaks {language!r}; only {', '.join(languages)}")
    named = next((known for known in voices if known.name == voice), None)
    if named is not None and not speaks(named.languages, language):
        raise UnsupportedLanguageError(
            f"voice {voice!r} does not speak {language!r}; only {', '.join(named.languages)}"
        )


def _candidates(lineup: Lineup, voice: str) -> tuple[list[int], str]:
    """Indices of the synthesizers that the name may refer to, and the name without a qualifier."""
    owner, _, own = voice.partition(SEPARATOR)
    named = [index for index, (name, _) in enumerate(lineup) if name == owner]
    return (named, own) if own and named else (list(range(len(lineup))), voice)


def voice_names(lineup: Lineup) -> list[str]:
    """All names of listed voices, the default first."""
    lists = [(name, one.voices or ()) for name, one in lineup]
    return [name for names in qualify(lists) for name in names]


def qualify(lists: Sequence[tuple[str, Sequence[str]]]) -> list[list[str]]:
    """The voices of each synthesizer, qualified where an earlier one has the same name."""
    seen: set[str] = set()
    qualified: list[list[str]] = []
    for owner, voices in lists:
        qualified.append([f"{owner}{SEPARATOR}{voice}" if voice in seen else voice for voice in voices])
        seen.update(voices)
    return qualified


def spoken_languages(lineup: Lineup) -> list[str]:
    """All languages of the synthesizers, each once."""
    return list(dict.fromkeys(language for _, one in lineup for language in one.languages))


def check_voice(
    voice: str | None, language: str, known: Sequence[KnownVoice], languages: Sequence[str]
) -> None:
    """Return if a synthesizer has the voice, None being its default, and speaks the language.

    Raises:
        UnsupportedVoiceError: it is none of ``known``.
        UnsupportedLanguageError: it is none of ``languages``.
    """
    names = [one.name for one in known]
    if voice is not None and voice not in names:
        raise UnsupportedVoiceError(f"no voice {voice!r}; there are {', '.join(names)}")
    if not speaks(languages, language):
        raise UnsupportedLanguageError(f"no voice speaks {language!r}; only {', '.join(languages)}")


def speaks(languages: Sequence[str], language: str) -> bool:
    """Whether ``languages`` has a language, or the one whose dialect it is."""
    return find_language(language, languages) is not None
