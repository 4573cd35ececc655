"""Words that the grammar does not know: invented names, labels and noise.

The model must copy a city or a label that it never saw. So most of the names it is trained
on are invented, and the real names in the ``UNSEEN_*`` lists are kept for the evaluation.
"""

from __future__ import annotations

import random
import re

from tiny.domain import SMALL_TALK


def _listed(text: str) -> tuple[str, ...]:
    return tuple(text.split())


UNSEEN_CITIES = (
    *_listed(
        "amsterdam barcelona budapest copenhagen edinburgh florence hamburg jakarta karachi kyoto "
        "lagos manila marseille melbourne montreal mumbai munich naples osaka philadelphia porto "
        "reykjavik sarajevo shanghai singapore tashkent valencia venice wellington yokohama zagreb "
        "zurich"
    ),
    "new york",
    "los angeles",
    "san felipe",
    "cape town",
    "buenos aires",
    "rio de janeiro",
)
UNSEEN_LABELS = (
    *_listed("soup cake chicken potatoes washing meeting nap shower cookies lasagna"),
    "green beans",
    "parking meter",
)
UNSEEN_NAMES = _listed("olivia charlotte william benjamin sophie matteo ingrid fatima hiroshi carlos")

# Everyday words that no sentence of the grammar uses; requests made of them are refused.
COMMON_WORDS = _listed(
    "apple bridge camera doctor engine flower garden hammer island jacket kettle ladder mirror needle "
    "orange pencil quarter river school table uncle village winter yellow zebra animal bottle carpet "
    "dinner electric future giant history idea joy key lemon money nature ocean planet question recipe "
    "science theory universe voice water box year zoo email contract invoice password account doctor "
    "appointment ticket taxi bus parking hospital teacher lawyer football guitar paint write explain "
    "translate build drive cook clean fix walk run sing dance jump think know believe maybe because "
    "although never always often many few big small old new red blue green quick slow heavy light dark "
    "loud soft between under above behind inside outside before after during without"
)

_ONSETS = _listed(
    "b c d f g h j k l m n p r s t v w z br ch cl cr dr fl fr gl gr kr ph pl pr sc sh sk sl st tr th tw"
)
_VOWELS = _listed("a e i o u a e i o u y ai au ea ee ei ia ie oa oo ou")
_CODAS = _listed("b d g k l m n p r s t x nd ng rg rk ll nn ss st ck ch sh th n r s l")
_ENDINGS = _listed("ton ville burg stad field ford ia a o os es ana ino ura oka berg grad mouth ham polis")
_PREFIXES = _listed("new san saint santa los el la le port fort north south east west upper old great de rio")
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
        onset = rng.choice(_ONSETS) if word or rng.random() < 0.85 else ""
        word += onset + rng.choice(_VOWELS) + (rng.choice(_CODAS) if rng.random() < 0.4 else "")
    if rng.random() < 0.35:
        word += rng.choice(_ENDINGS)
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
        return f"{rng.choice(_PREFIXES)} {invented_word(rng)}"
    if kind < 0.97:
        return f"{invented_word(rng)} {invented_word(rng)}"
    return f"{invented_word(rng)} {rng.choice(_PREFIXES)} {invented_word(rng)}"


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
