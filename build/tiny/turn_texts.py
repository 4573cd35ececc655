"""What the end-of-turn network learns from: the assistant's domain, short turns, sentences of any kind.

The sentences of the tests (:func:`test_texts`) are in none of the training's.
"""

from __future__ import annotations

import random
import tomllib
from pathlib import Path
from typing import Any, Literal

from tiny import callers, domain, words
from tiny.fragments import fragment, joined

Kind = Literal["domain", "short", "digits", "general"]

_TEXTS: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
_SHORT: list[str] = _TEXTS["short"]
_BLANKS = (
    "person person2 thing thing2 place time past plain plain2 quality start word word2"  # of the templates
).split()


def training_text(rng: random.Random) -> tuple[Kind, str]:
    """Draw what is said in one clip, as it is written for a synthesizer."""
    # Not all of the synthesizers can read accents.
    while not (drawn := _drawn(rng))[1].isascii():
        pass
    return drawn


def _drawn(rng: random.Random) -> tuple[Kind, str]:
    kind = rng.random()
    if kind < 0.30:
        return "domain", _written(_known(rng), rng)
    if kind < 0.38:
        return "domain", _written(rng.choice((fragment, joined))(rng), rng)
    if kind < 0.55:
        return "short", _written(_short(rng), rng)
    if kind < 0.63:
        return "digits", _written(_digits(rng), rng)
    text = _general(rng)
    return "general", _written(text, rng)


def test_texts(rng: random.Random, domain_sentences: int) -> list[tuple[Kind, str]]:
    """The sentences of the tests."""
    texts: dict[str, Kind] = {}
    while len(texts) < domain_sentences:
        drawn = domain.spoken(rng)
        if drawn.held_out:
            texts[drawn.text] = "domain"
    for _ in range(12):
        texts["".join((rng.choice(("my number is ", "it's ", "")), _run(rng, rng.randint(3, 8))))] = "digits"
    places = [*words.UNSEEN_CITIES[:10], *words.UNSEEN_NAMES]
    short = [*_TEXTS["short_of_tests"], *places, *(f"and in {place}" for place in places[:5])]
    texts |= dict.fromkeys(short, "short") | dict.fromkeys(_TEXTS["sentences_of_tests"], "general")
    return [(kind, text) for text, kind in texts.items()]


def short_known_texts() -> list[str]:
    """Short turns that the training has too, for tests with other voices."""
    return [*_SHORT, *domain.STOP_PHRASES, *domain.SMALL_TALK]


def _known(rng: random.Random) -> str:
    while (drawn := domain.spoken(rng)).held_out:
        pass
    return drawn.text


def _short(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.45:
        return rng.choice(_SHORT)
    if kind < 0.65:
        return rng.choice((*domain.STOP_PHRASES, *domain.SMALL_TALK))
    name = rng.choice((rng.choice(domain.CITIES), rng.choice(domain.NAMES), words.invented_name(rng)))
    if kind < 0.8:
        return rng.choice((name, f"in {name}", f"and in {name}", f"{name} please", f"it's {name}"))
    return rng.choice(
        (
            callers.missing_minutes(rng).text,
            callers.confirmation(rng).text,
            domain.correct_minutes(rng).text,
            rng.choice(words.COMMON_WORDS),
        )
    )


def _digits(rng: random.Random) -> str:
    if rng.random() < 0.2:
        letters = " ".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(2, 6)))
        return rng.choice((letters, f"it is spelled {letters}"))
    start = rng.choice(("", "", "it's ", "my number is ", "my phone number is ", "the code is ", "call "))
    return start + _run(rng, rng.randint(1, 11))


def _run(rng: random.Random, count: int) -> str:
    return " ".join(rng.choice(domain.ONES[:10]) for _ in range(count))


def _general(rng: random.Random) -> str:
    if rng.random() < 0.12:
        while not (text := callers.noise(rng).text) or not text[0].isalpha():
            pass
        return text
    lists = {**_TEXTS["fill"], "word": words.COMMON_WORDS}
    fill = {name: lists[name.removesuffix("2")] for name in _BLANKS}
    drawn = {name: rng.choice(choices) for name, choices in fill.items()}
    drawn["number"], drawn["number2"] = (domain.number_words(rng.randint(2, 60)) for _ in range(2))
    drawn["name"] = words.invented_name(rng)
    return rng.choice(_TEXTS["templates"]).format(**drawn)


def _written(text: str, rng: random.Random) -> str:
    """With the punctuation that some writers would give it; a synthesizer speaks by it."""
    bare = text.removesuffix("?")
    parts = bare.split()
    if len(parts) > 3 and rng.random() < 0.08:
        at = rng.randrange(1, len(parts) - 1)
        parts[at] += ","
    bare = " ".join(parts)
    if rng.random() < 0.5:
        return bare
    return bare + ("?" if bare != text else rng.choice("..!"))
