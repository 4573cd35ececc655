"""How an utterance is written: as a recogniser writes it, or as a person types it."""

from __future__ import annotations

import random
import re

from tiny.domain import DAYS, NAMES, ONES, TENS, Utterance, number_words
from tiny.words import misspell

_NUMBERS = {number_words(n): n for n in range(70)}
_NUMBER = re.compile(rf"\b(?:{'|'.join(sorted(_NUMBERS, key=len, reverse=True))})\b")
_QUESTION = re.compile(
    r"(?:what|how|who|will|is|do|does|can|where|when|why|and|sorry what|\w+ in .* what's|on \w+ in)\b"
)
_PRONOUN = re.compile(r"\bi\b")
_LOST = frozenset(("a", "the", "please", "is", "it", "me", "now", "like", "will", "you"))
_WEEKDAYS = DAYS[3:]
_PROPER_NOUN = re.compile(rf"\b(?:{'|'.join((*_WEEKDAYS, *NAMES))})\b")


def capitalised(name: str) -> str:
    """``san felipe`` as it is written in arguments and answers: ``San Felipe``."""
    return " ".join(word[:1].upper() + word[1:] for word in name.split(" "))


def typed(utterance: Utterance, rng: random.Random) -> str:
    """Write an utterance as a person types it: capitals, digits and punctuation."""
    text = utterance.text
    if utterance.intent == "phone_number":
        kind, digits = str(utterance.slots["kind"]), str(utterance.slots["digits"])
        text = f"my {kind} is {digits.replace(' ', '') if rng.random() < 0.7 else digits}"
    else:
        text = _NUMBER.sub(lambda match: str(_NUMBERS[match.group()]), text)
    question = bool(_QUESTION.match(text)) and utterance.intent not in ("correct_city", "correct_minutes")
    if rng.random() < 0.7:
        for slot in ("city", "name"):
            value = str(utterance.slots.get(slot, ""))
            if value:
                text = re.sub(rf"\b{re.escape(value)}\b", capitalised(value), text)
        text = _PROPER_NOUN.sub(lambda match: capitalised(match.group()), text)
    text = _PRONOUN.sub("I", text)
    text = text[:1].upper() + text[1:]
    if rng.random() < 0.85:
        text += "?" if question else rng.choice((".", ".", ".", "!")) if len(text.split()) < 4 else "."
    return text


def misheard(utterance: Utterance, rng: random.Random) -> str:
    """Write an utterance with one word lost or misspelt, but never a slot's."""
    kept = {word for value in utterance.slots.values() for word in str(value).split()}
    kept |= set(ONES) | set(TENS.values()) | {"hour", "half", "quarter", "weather", "time", "timer", "not"}
    words = utterance.text.split()
    candidates = [i for i, word in enumerate(words) if word not in kept and len(word) > 1]
    if not candidates or len(words) < 4:
        return utterance.text
    at = rng.choice(candidates)
    if words[at] in _LOST:
        del words[at]
    elif len(words[at]) > 3:
        words[at] = misspell(words[at], rng)
    return " ".join(words)
