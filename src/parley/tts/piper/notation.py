"""misaki's phonemes as the symbols of a Piper voice, which are those of espeak-ng for American English."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from parley.errors import ModelLoadingError
from parley.tts.english.pronouncer import PronouncedWord
from parley.tts.english.sounds import VOWELS, begins_with_vowel

_PAD, _START, _END, _SPACE = "_", "^", "$", " "
_SAME_SOUND = dict(zip("AIOWYʤʧᵊuɑ", "eɪ aɪ oʊ aʊ ɔɪ dʒ tʃ ə uː ɑː".split(), strict=True))
_STRESSED = "[ˈˌ]"
_VOWEL = f"[ˈˌ]?[{''.join(sorted(VOWELS))}]"
# Words that espeak-ng says weaker still.
_WEAK = {"i": {"ˌI": "aɪ"}, "the": {"ði": "ðɪ"}}
_RULES = (
    # Of the two sounds one remains, but for "arrive" and "hurry".
    (re.compile(f"ɜɹ(?={_VOWEL})"), "ɜːɹ"),
    (re.compile(f"əɹ(?={_VOWEL})"), "ɚɹ"),
    (re.compile("ɜɹ"), "ɜː"),
    (re.compile("əɹ"), "ɚ"),
    # Long where it is stressed, short in "happy".
    (re.compile(f"(?<={_STRESSED})i"), "iː"),
    # Long in "law", short in "off", "on" and "long".
    (re.compile("ɔ(?![fsθnŋ])"), "ɔː"),
)
_WEAK_PREFIX = re.compile("(?<=^[bdɹ])ə")  # "before", "delay", "remind"
_SYLLABLES = re.compile(f"[{''.join(sorted(VOWELS))}]")
# The strongest of the marks that follow a word; the voice has no others.
_MARKS = {"?": "?", "!": "!", ".": ".", "…": ".", ";": ";", ":": ":", ",": ",", "—": ",", ")": ","}


@dataclass(frozen=True)
class Symbols:
    """The encoder's input for a phrase."""

    ids: tuple[int, ...]
    starts: tuple[int, ...]
    """Index of the first symbol of each word, and of what follows the last one."""


class VoiceSettings(msgspec.Struct, frozen=True):
    """The part of a voice's ``.onnx.json`` that is read."""

    class Audio(msgspec.Struct, frozen=True):
        """Its audio."""

        sample_rate: int

    class Inference(msgspec.Struct, frozen=True):
        """How the voice is meant to be spoken."""

        noise_scale: float = 0.667
        length_scale: float = 1.0
        noise_w: float = 0.8

    audio: Audio
    phoneme_id_map: dict[str, tuple[int, ...]]
    inference: Inference = Inference()
    num_speakers: int = 1


def read_settings(path: Path) -> VoiceSettings:
    """Read a voice's description.

    Raises:
        ModelLoadingError: it cannot be read, or this kind of voice is not supported.
    """
    try:
        settings = msgspec.json.decode(path.read_bytes(), type=VoiceSettings)
    except (OSError, msgspec.MsgspecError) as error:
        raise ModelLoadingError(f"{path} cannot be read: {error}") from error
    if settings.num_speakers != 1:
        raise ModelLoadingError(f"{path.name}: voices of several speakers are not supported")
    needed = {_PAD, _START, _END, _SPACE, *"".join(_SAME_SOUND.values()), *_MARKS.values(), *"ˈˌɚɹ"}
    if missing := sorted(needed - settings.phoneme_id_map.keys()):
        raise ModelLoadingError(f"{path.name}: the voice has no symbols {json.dumps(missing)}")
    return settings


class Notation:
    """Turns words into a voice's symbols, by its ``phoneme_id_map``."""

    def __init__(self, table: Mapping[str, Sequence[int]]) -> None:
        self._table = table

    def symbols(self, words: Sequence[PronouncedWord]) -> Symbols:
        """The symbols of a phrase."""
        ids: list[int] = [*self._table[_START], *self._table[_PAD]]
        starts: list[int] = []
        end = len(ids)
        for index, word in enumerate(words):
            following = words[index + 1] if index + 1 < len(words) else None
            mark = mark_after(word.after + (following.before if following else ""))
            sounds = spelled(word)
            if (
                following
                and not mark
                and sounds.endswith(("ɚ", "ɜː"))
                and begins_with_vowel(following.phonemes)
            ):
                sounds += "ɹ"  # "the weather in"
            if index:
                self._add(_SPACE, ids)
            starts.append(len(ids))
            for symbol in sounds:
                self._add(symbol, ids)
            end = len(ids)
            self._add(mark, ids)
        return Symbols((*ids, *self._table[_END]), (*starts, end))

    def _add(self, symbol: str, ids: list[int]) -> None:
        if symbol in self._table:
            ids += (*self._table[symbol], *self._table[_PAD])


def spelled(word: PronouncedWord) -> str:
    """A word's phonemes in espeak-ng's spelling."""
    phonemes, letters = word.phonemes, word.text.lower()
    if letters in _WEAK:
        return _WEAK[letters].get(phonemes, phonemes)
    if letters[0] == "a" and phonemes[0] == "ə" and phonemes[1:2] != "ɹ":
        phonemes = "ɐ" + phonemes[1:]  # "about"
    if letters[1:2] == "e":
        phonemes = _WEAK_PREFIX.sub("ᵻ", phonemes)
    for sound, replacement in _RULES:
        phonemes = sound.sub(replacement, phonemes)
    if len(_SYLLABLES.findall(phonemes)) == 1:  # "we", "three": short nowhere
        phonemes = re.sub("i(?!ː)", "iː", phonemes)
    return "".join(_SAME_SOUND.get(sound, sound) for sound in phonemes)


def mark_after(marks: str) -> str:
    """The one symbol for the marks between two words; empty: none is due."""
    if "(" in marks:
        marks += ","
    return next((symbol for mark, symbol in _MARKS.items() if mark in marks), "")
