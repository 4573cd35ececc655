"""Texts as words with phonemes, in the notation that Kokoro's voices of Spanish and French learned.

That is espeak-ng's IPA, with one symbol for each affricate and diphthong of English origin. Words between two
marks are pronounced together, so that French has its liaisons.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from parley.tts.english.pronouncer import PronouncedWord
from parley.tts.text import with_minus

VOICES: Mapping[str, str] = {"es": "roa/es", "fr": "roa/fr"}
"""espeak-ng's voice by primary language."""
TIE = "^"
"""Joins the letters of one sound in what espeak-ng writes."""

_WORD = re.compile(r"\S+")
_CORE = re.compile(r"[\w$€£¥₹%°&@+=](?:.*[\w$€£¥₹%°&@+=])?", re.DOTALL)
_MARKS = {"«": "“", "»": "”", "-": "", "–": "—"}
_KEPT = frozenset(';:,.!?—…"()“”')
_ONE_SYMBOL = {
    "a^ɪ": "I",
    "a^ʊ": "W",
    "d^z": "ʣ",
    "d^ʒ": "ʤ",
    "e^ɪ": "A",
    "o^ʊ": "O",
    "ə^ʊ": "Q",
    "t^s": "ʦ",
    "t^ʃ": "ʧ",
    "ɔ^ɪ": "Y",
}
_OTHER_LANGUAGE = re.compile(r"\([a-z^-]+\)")
"""espeak-ng marks words that it pronounces in another language, with ties: ``(^e^n)wˈiːk(^f^r)``."""


class Phonemes(Protocol):
    """The part of :class:`.client.PhonemeProcess` that is used; tests have another."""

    def phonemes(self, voice: str, texts: Sequence[str]) -> Sequence[str]:
        """See :meth:`.client.PhonemeProcess.phonemes`."""
        ...


class EspeakFrontEnd:
    """Pronounces one language."""

    def __init__(self, phonemes: Phonemes, language: str) -> None:
        self._phonemes = phonemes
        self._voice = VOICES[language]
        self._language = language

    def pronounce(self, text: str) -> Sequence[PronouncedWord]:
        """The words of a text as they are spoken; figures are read by espeak-ng's rules.

        Raises:
            InferenceError: espeak-ng's process failed, or does not run.
            InvalidInputError: it fails again and again over this text.
        """
        spoken, places = with_minus(text, self._language)
        runs = list(_runs(spoken))
        sounds = [said.split() for said in self._say([" ".join(word.text for word in run) for run in runs])]
        # espeak-ng reads figures as several words, and joins some small ones.
        apart = [at for at, run in enumerate(runs) if len(sounds[at]) != len(run)]
        alone = iter(self._say([word.text for at in apart for word in runs[at]]))
        for at in apart:
            sounds[at] = [next(alone) for _ in runs[at]]
        return [
            replace(word, phonemes=sound, start=places[word.start], end=places[word.end - 1] + 1)
            for run, each in zip(runs, sounds, strict=True)
            for word, sound in zip(run, each, strict=True)
            if sound
        ]

    def _say(self, texts: Sequence[str]) -> Sequence[str]:
        return [_written(said) for said in self._phonemes.phonemes(self._voice, texts)] if texts else []


def _written(said: str) -> str:
    """What espeak-ng says, in the notation of the voices."""
    said = _OTHER_LANGUAGE.sub("", said)
    for sound, symbol in _ONE_SYMBOL.items():
        said = said.replace(sound, symbol)
    return said.replace(TIE, "").replace("-", "")


def _runs(text: str) -> Iterator[list[PronouncedWord]]:
    """The words of a text without phonemes, as far as no mark parts them."""
    run: list[PronouncedWord] = []
    for match in _WORD.finditer(text):
        core = _CORE.search(match[0])
        if core is None:
            if run and (marks := _marks(match[0])):
                run[-1] = replace(run[-1], after=run[-1].after + marks)
                yield run
                run = []
            continue
        before, after = _marks(match[0][: core.start()]), _marks(match[0][core.end() :])
        if before and run:
            yield run
            run = []
        start = match.start() + core.start()
        run.append(PronouncedWord(core[0], "", start, start + len(core[0]), before, after))
        if after:
            yield run
            run = []
    if run:
        yield run


def _marks(text: str) -> str:
    return "".join(mark for mark in (_MARKS.get(one, one) for one in text) if mark in _KEPT)
