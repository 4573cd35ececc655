"""Facts about the sounds of American English."""

from __future__ import annotations

PRIMARY, SECONDARY = "ˈ", "ˌ"
VOWELS = frozenset("AIOWYiuæɑɐɔəɛɜɪʊʌᵻᵊ")
_REDUCED = frozenset("əᵻᵊɐ")
_VOICELESS = frozenset("ptkfθ")
_SIBILANT = frozenset("szʃʒʧʤ")
# After these, a "t" in front of an unstressed vowel is a flap, as in "water".
_BEFORE_FLAP = frozenset("AIOWYiuæɑəɛɪɹʊʌɔ")


def has_vowel(phonemes: str) -> bool:
    """Whether there is a syllable."""
    return not VOWELS.isdisjoint(phonemes)


def begins_with_vowel(phonemes: str) -> bool:
    """Whether the first sound is a vowel: "an apple", "the apple"."""
    return phonemes.lstrip(PRIMARY + SECONDARY)[:1] in VOWELS


def plural(stem: str) -> str:
    """With -s, of nouns and of verbs."""
    if stem[-1] in _SIBILANT:
        return stem + "ᵻz"
    return stem + ("s" if stem[-1] in _VOICELESS else "z")


def past(stem: str) -> str:
    """With -ed."""
    if stem[-1] == "t":
        return flapped(stem) + "ᵻd"
    if stem[-1] == "d":
        return stem + "ᵻd"
    return stem + ("t" if stem[-1] in _VOICELESS or stem[-1] in "sʃʧ" else "d")


def progressive(stem: str) -> str:
    """With -ing."""
    return flapped(stem) + "ɪŋ"


def flapped(stem: str) -> str:
    """A stem as it sounds in front of an ending that begins with a vowel."""
    if len(stem) > 1 and stem[-1] == "t" and stem[-2] in _BEFORE_FLAP:
        return stem[:-1] + "ɾ"
    return stem


def is_flap_place(before: str) -> bool:
    """Whether a "t" after this sound may be a flap."""
    return before in _BEFORE_FLAP


def stressed(phonemes: str) -> str:
    """With one syllable that bears the stress, if there is any syllable."""
    if PRIMARY in phonemes:
        first = phonemes.index(PRIMARY) + 1
        return phonemes[:first] + phonemes[first:].replace(PRIMARY, SECONDARY)
    if SECONDARY in phonemes:
        return phonemes.replace(SECONDARY, PRIMARY, 1)
    vowels = [index for index, sound in enumerate(phonemes) if sound in VOWELS]
    if not vowels:
        return phonemes
    at = next((index for index in vowels if phonemes[index] not in _REDUCED), vowels[0])
    return phonemes[:at] + PRIMARY + phonemes[at:]


def joined_letters(letters: list[str]) -> str:
    """The names of letters as one word, whose last letter bears the stress: "FBI"."""
    first = "".join(name.replace(PRIMARY, SECONDARY) for name in letters[:-1])
    return first + letters[-1]
