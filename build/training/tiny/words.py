"""Words that the grammar does not know: invented names, labels and noise.

The model must copy a city or a label that it never saw. So most of the names it is trained
on are invented, and the real names in the ``UNSEEN_*`` lists are kept for the evaluation.
"""

from __future__ import annotations

import random
import re

from tiny.domain import SMALL_TALK, TEXTS

UNSEEN_CITIES: list[str] = TEXTS["unseen_cities"]
UNSEEN_LABELS: list[str] = TEXTS["unseen_labels"]
UNSEEN_NAMES: list[str] = TEXTS["unseen_names"]
COMMON_WORDS: list[str] = TEXTS["common_words"]
_ACCENTS = {"a": "á", "e": "é", "o": "ö", "u": "ü", "n": "ñ"}
_ALPHABET = "abcdefghijklmnopqrstuvwxyz"
_REAL_WORDS: tuple[str, ...] = (
    *COMMON_WORDS,
    *sorted({word for texts in SMALL_TALK.items() for word in re.findall("[a-z]{3,}", " ".join(texts))}),
)


def invented_word(rng: random.Random) -> str:
    """A pronounceable word, parts of two real words, or a run of random letters."""
    kind = rng.random()
    if kind < 0.1:
        return "".join(rng.choice(_ALPHABET) for _ in range(rng.randint(3, 9)))
    if kind < 0.45:
        one, two = rng.choice(_REAL_WORDS), rng.choice(_REAL_WORDS)
        return one[: rng.randint(1, len(one))] + two[rng.randrange(len(two)) :]
    word = ""
    for _ in range(rng.choice((1, 2, 2, 2, 3, 3))):
        onset = rng.choice(TEXTS["onsets"]) if word or rng.random() < 0.85 else ""
        word += (
            onset + rng.choice(TEXTS["vowels"]) + (rng.choice(TEXTS["codas"]) if rng.random() < 0.4 else "")
        )
    if rng.random() < 0.35:
        word += rng.choice(TEXTS["endings"])
    if rng.random() < 0.03:
        accented = rng.choice(tuple(_ACCENTS))
        word = word[0] + word[1:].replace(accented, _ACCENTS[accented], 1)
    return word


def invented_name(rng: random.Random) -> str:
    """A name of one to three words, in lower case."""
    kind = rng.random()
    if kind < 0.78:
        return invented_word(rng)
    if kind < 0.9:
        return f"{rng.choice(TEXTS['prefixes'])} {invented_word(rng)}"
    if kind < 0.97:
        return f"{invented_word(rng)} {invented_word(rng)}"
    return f"{invented_word(rng)} {rng.choice(TEXTS['prefixes'])} {invented_word(rng)}"


def invented_label(rng: random.Random) -> str:
    """What a timer could be for: a common or an invented word, sometimes two."""
    words = [invented_word(rng) if rng.random() < 0.5 else rng.choice(COMMON_WORDS)]
    if rng.random() < 0.2:
        words.append(invented_word(rng) if rng.random() < 0.5 else rng.choice(COMMON_WORDS))
    return " ".join(words)


def misspell(word: str, rng: random.Random) -> str:
    """Drop, double or replace one letter, as a weak recogniser does."""
    at = rng.randrange(len(word))
    middle = rng.choice(("", word[at] * 2, rng.choice(_ALPHABET)))
    return word[:at] + middle + word[at + 1 :]
