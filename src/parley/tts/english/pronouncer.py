"""English text to phonemes; see the package."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from parley.runtime.parameters import Parameters
from parley.runtime.weights import cache_dir, resolve_weights
from parley.tts.english import dictionary, network
from parley.tts.english.dictionary import Dictionary, Entry, Place, choose, load_dictionary
from parley.tts.english.network import LetterNetwork, load_network
from parley.tts.english.sounds import (
    begins_with_vowel,
    has_vowel,
    joined_letters,
    past,
    plural,
    progressive,
    stressed,
)
from parley.tts.english.tokens import CLOSING, OPENING, PAUSES, SENTENCE_ENDS, TextToken, tokens_of
from parley.tts.normalization.nemo import load_grammars
from parley.tts.normalization.normalizer import SpokenText, TextNormalizer, WrittenWord

# Capitals that stand for emphasis rather than for letters.
_EMPHASIZED = frozenset("am as at be by do go he if in is me my no of oh on or so to up we hi ok".split())
_AFTER_HOUR = re.compile(
    r"one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|.*ty|.*teen|o'clock"
)
_LONGEST_INITIALS = 4
_INITIALS_PLURAL = re.compile(r"[A-Z]{2,}s")
_VOWEL_LETTERS = frozenset("AEIOUY")
_ENDINGS = {"'ll": "ᵊl", "'ve": "əv", "'re": "əɹ", "n't": "ᵊnt", "'m": "m"}
_DOUBLED = re.compile(r"([bdgklmnprtvz])\1$")
_COMPOUND = 4
"""Letters that each half of a compound has at least: "smartwatch"."""
_LONGEST_WORD = 40
"""Letters of a word; what is longer is read in pieces of this length."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PronouncedWord:
    """A word as it is spoken."""

    text: str
    phonemes: str
    """In misaki's notation; never empty."""
    start: int
    end: int
    """Half-open span, in the original text, of the written word that it belongs to."""
    before: str = ""
    """Opening marks in front of it: some of ``“(``."""
    after: str = ""
    """Marks that follow it: some of ``.,!?;:…—”)``."""


@dataclass(frozen=True)
class Pronunciation:
    """How a text is spoken."""

    words: tuple[PronouncedWord, ...]
    skipped: tuple[WrittenWord, ...] = ()
    """Written words that are not spoken in full, because their script cannot be read."""

    @property
    def phonemes(self) -> str:
        """All words and marks, with spaces between words."""
        return " ".join(word.before + word.phonemes + word.after for word in self.words)


class EnglishPronouncer:
    """Turns words into phonemes, from the dictionary or else by the network.

    Safe to use from several threads. ``cache`` words are remembered.
    """

    def __init__(self, dictionary: Dictionary, network: LetterNetwork, *, cache: int = 4096) -> None:
        self._dictionary = dictionary
        self._network = network
        self._known = lru_cache(cache)(self._sound)

    def pronounce(self, spoken: SpokenText) -> Pronunciation:
        """The phonemes of a normalized text."""
        tokens = tokens_of(spoken.words, lambda word: self._dictionary.get(word) is not None)
        drafts, lost = _gather(tokens)
        if len(drafts) > 2 and all(draft.text.isupper() for draft in drafts):
            for draft in drafts:
                draft.text = draft.text.lower()
        texts = [draft.text.lower() for draft in drafts]
        pauses = frozenset(index for index, draft in enumerate(drafts) if not PAUSES.isdisjoint(draft.after))
        words: list[PronouncedWord] = []
        following = ""
        for index in reversed(range(len(drafts))):
            place = Place(texts, index, pauses)
            opens = index == 0 or not SENTENCE_ENDS.isdisjoint(drafts[index - 1].after)
            following = self._say(drafts[index].text, place, "" if place.last else following, opens=opens)
            words.append(drafts[index].with_sound(following))
        return Pronunciation(tuple(reversed(words)), tuple(lost))

    # --- in its place ---------------------------------------------------------------------

    def _say(self, text: str, place: Place, following: str, *, opens: bool) -> str:
        weak = _weak(text, place, following)
        if weak:
            return weak
        entry = self._entry(text, opens=opens)
        found = choose(entry, place) if entry is not None else None
        if entry is not None and _is_initials_here(text, place):
            found = None
        return found or self._known(text)

    def _entry(self, word: str, *, opens: bool) -> Entry | None:
        """The dictionary's entry: of the word as it is spelled, else in another case."""
        get = self._dictionary.get
        lower = word.lower()
        if _INITIALS_PLURAL.fullmatch(word):
            return get(word)
        if word.isupper() and len(word) > 1:
            if self._dictionary.is_common(word):
                return get(word)
            common = lower in _EMPHASIZED if len(word) == 2 else self._dictionary.is_common(lower)
            return get(lower) if common else None
        # "Nice to meet you", "Polish the table": the capital of a sentence says nothing.
        spellings = (lower, word) if opens and word.istitle() and len(word) > 1 else (word, lower)
        for spelling in (*spellings, lower.capitalize()):
            entry = get(spelling)
            if entry is not None:
                return entry
        return get(word.upper()) if len(word) > 2 else None

    # --- by itself ------------------------------------------------------------------------

    def _sound(self, word: str) -> str:
        """The phonemes of a word without a dictionary entry of its own."""
        if len(word) > _LONGEST_WORD:
            pieces = [word[begin : begin + _LONGEST_WORD] for begin in range(0, len(word), _LONGEST_WORD)]
            return "".join(map(self._sound, pieces))
        if _is_initials(word):
            return self._spelled(word)
        return (
            self._contracted(word)
            or self._inflected(word)
            or self._compound(word)
            or self._read(word)
            or self._spelled(word)
        )

    def _default(self, word: str, *, verb: bool = False) -> str | None:
        entry = self._entry(word, opens=False)
        if entry is None or isinstance(entry, str):
            return entry
        return (entry.get("VERB") if verb else None) or entry["DEFAULT"]

    def _contracted(self, word: str) -> str | None:
        stem, apostrophe, ending = word.rpartition("'")
        if not stem or not apostrophe:
            return None
        if stem[-1:].lower() == "n" and ending.lower() == "t" and len(stem) > 1:
            stem, ending = stem[:-1], "n't"
        else:
            ending = "'" + ending.lower()
        sound = self._default(stem) or self._known(stem)
        if ending == "'s":
            return plural(sound)
        if ending == "'d":
            return past(sound)
        return sound + _ENDINGS[ending] if ending in _ENDINGS else sound + self._known(ending[1:])

    def _inflected(self, word: str) -> str | None:
        lower = word.lower()
        for ending, inflect, verb in (("s", plural, False), ("ed", past, True), ("ing", progressive, True)):
            if not lower.endswith(ending) or lower.endswith("ss"):
                continue
            for stem in _stems(word, ending):
                sound = self._default(stem, verb=verb) or (
                    self._spelled(stem) if _is_initials(stem) else None
                )
                if sound:
                    return inflect(sound)
        return None

    def _compound(self, word: str) -> str | None:
        if not word.islower():
            return None
        for cut in range(len(word) - _COMPOUND, _COMPOUND - 1, -1):
            first, second = word[:cut], word[cut:]
            if self._dictionary.is_common(first) and self._dictionary.is_common(second):
                sounds = self._default(first), self._default(second)
                if sounds[0] and sounds[1]:
                    return stressed(sounds[0] + sounds[1])
        return None

    def _read(self, word: str) -> str | None:
        sound = self._network.read(word.lower())
        return sound if has_vowel(sound) else None

    def _spelled(self, word: str) -> str:
        if _INITIALS_PLURAL.fullmatch(word):  # "PDFs"
            return plural(self._spelled(word[:-1]))
        names = [self._dictionary.get(letter.upper()) for letter in word if letter.isalpha()]
        return joined_letters([name for name in names if isinstance(name, str)])


@dataclass
class _Draft:
    """A word whose sounds are not known yet."""

    text: str
    written: WrittenWord
    before: str = ""
    after: str = ""

    def with_sound(self, phonemes: str) -> PronouncedWord:
        return PronouncedWord(
            self.text, phonemes, self.written.start, self.written.end, self.before, self.after
        )


def load_pronouncer(dictionary: Path, network: Path) -> EnglishPronouncer:
    """Read the dictionaries and the network from their folders, in half a second.

    Raises:
        ModelLoadingError: a file cannot be read.
    """
    return EnglishPronouncer(load_dictionary(dictionary), load_network(network))


def _gather(tokens: list[TextToken]) -> tuple[list[_Draft], list[WrittenWord]]:
    """The words with their marks, and the written words of which something is not spoken."""
    drafts: list[_Draft] = []
    lost: list[WrittenWord] = []
    opening = ""
    for token in tokens:
        if token.kind == "word":
            drafts.append(_Draft(token.text, token.written, before=opening))
            opening = ""
        elif token.kind == "lost":
            if token.written not in lost[-1:]:
                lost.append(token.written)
        elif token.text in OPENING:
            opening += token.text
        elif token.text in CLOSING and opening:  # "()"
            opening = opening[:-1]
        elif drafts and not drafts[-1].after.endswith(token.text):
            drafts[-1].after += token.text
    return drafts, lost


def _weak(text: str, place: Place, following: str) -> str | None:
    """Small words that change with the sound after them; None for all others."""
    word = place.words[place.index]
    vowel = begins_with_vowel(following)
    if text == "I":
        return "ˌI"
    if word == "the":
        return "ði" if vowel else "ðə"
    if word == "in":
        return None if following else "ˈɪn"
    if not following:
        return None
    if word == "to":
        return "tʊ" if vowel else "tə"
    # "A" in the middle of a sentence is the letter: "vitamin A is".
    is_article = word in ("a", "an") and (text != "A" or place.first)
    return {"a": "ɐ", "an": "ɐn"}[word] if is_article else None


def _is_initials(word: str) -> bool:
    """Whether a word that no dictionary has is spoken letter by letter."""
    if len(word) == 1:
        return True
    if _INITIALS_PLURAL.fullmatch(word):
        word = word[:-1]
    if not word.isupper() or not word.isalpha():
        return False
    return len(word) <= _LONGEST_INITIALS or _VOWEL_LETTERS.isdisjoint(word)


def _is_initials_here(text: str, place: Place) -> bool:
    """Whether capitals that could be a word are letters: "the US", "seven AM"."""
    if text in ("US", "IT"):
        return True
    if text == "WHO":
        return place.before == "the"
    return text == "AM" and bool(_AFTER_HOUR.fullmatch(place.before))


def _stems(word: str, ending: str) -> Iterator[str]:
    """What a word with this ending may be a form of, the likeliest first."""
    stem = word[: -len(ending)]
    if len(stem) < 2:
        return
    if ending == "s":
        yield stem
        if stem.endswith("ie"):
            yield stem[:-2] + "y"
        elif stem.endswith("e"):
            yield stem[:-1]
        return
    if ending == "ed" and stem.endswith("i"):
        yield stem[:-1] + "y"
    if _DOUBLED.search(stem):
        yield stem[:-1]
    yield stem + "e"
    yield stem


class EnglishFrontEnd:
    """Normalizes a text and pronounces its words. Not for use in two threads at once."""

    def __init__(self, normalizer: TextNormalizer, pronouncer: EnglishPronouncer) -> None:
        self._normalizer = normalizer
        self._pronouncer = pronouncer

    def pronounce(self, text: str) -> Sequence[PronouncedWord]:
        """The words of a text as they are spoken; none for a script that cannot be read."""
        pronunciation = self._pronouncer.pronounce(self._normalizer.normalize(text, "en"))
        if pronunciation.skipped:
            # Without the words, which may be the user's.
            _log.warning("%d words cannot be read and are not spoken", len(pronunciation.skipped))
        return pronunciation.words


def load_front_end(parameters: Parameters) -> EnglishFrontEnd:
    """The front end of a model; takes half a minute where grammars have to be compiled first.

    Parameters of the model:
        ``dictionary``, ``letters``: folders of misaki's dictionaries and of g2p-en's network.

    Raises:
        ModelLoadingError: a file is missing, or it or a grammar cannot be read.
    """
    pronouncer = load_pronouncer(
        resolve_weights(parameters, "misaki-en", dictionary.FILES, setting="dictionary"),
        resolve_weights(parameters, "g2p-en", (network.FILE,), setting="letters"),
    )
    grammars = load_grammars(("en",), cache_dir() / "normalization")
    return EnglishFrontEnd(TextNormalizer(grammars, tags=False), pronouncer)
