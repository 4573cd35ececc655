"""The recogniser's data: which sentence is said by which voice, in training and in evaluation.

A corpus is a folder with, for each split, ``<split>.npy`` (int16, all clips end to end) and
``<split>.json`` (texts, voices and offsets).  Clips hold speech only; :mod:`tiny.augment` adds
the silence, noise and level of a real line.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import Pool
from pathlib import Path
from typing import TypeVar

import numpy as np

from tiny import dialogs, domain
from tiny.domain import CITIES, DAYS, LABELS, NAMES, ONES, SMALL_TALK, Utterance, number_words
from tiny.fragments import fragment, joined
from tiny.speech import (
    AGENT_VOICE,
    HELD_OUT_VOICES,
    Manner,
    Samples,
    Voice,
    say,
    training_voice,
    varied_manner,
)

_SENTENCE_END = re.compile(r"(?<=[.!?]) ")
_LONGEST_ANSWER = 24
SPLITS = {
    "train": 16_000,
    "sentences": 300,
    "sentences_and_voices": 300,
    "short_and_voices": 300,
    "answers": 150,
}
"""Clips per split.

``sentences``: held-out sentences, training voices.  ``sentences_and_voices``: both held out.
``short_and_voices``: short and fixed phrases, which are in training, by held-out voices.
``answers``: held-out answers of the assistant by the agent's voice.
"""
T = TypeVar("T")
_BRIEF = 4
"""Most words of a short phrase."""


@dataclass(frozen=True)
class Answer:
    """One thing the assistant says."""

    spoken: str
    """The text with punctuation, which gives a synthesizer its pauses."""

    @property
    def text(self) -> str:
        """What a recogniser should write: lower case, no punctuation, numbers as words."""
        return re.sub(r"[^a-z' ]", "", self.spoken.lower())

    @property
    def held_out(self) -> bool:
        """Whether this answer is kept from training, by the rule of :class:`tiny.domain.Utterance`."""
        fixed = self.spoken in _FIXED
        return not fixed and Utterance(self.text, "unknown", {"answer": self.text}).held_out


def _pieces(answer: str) -> tuple[str, ...]:
    """A fixed answer as one line if it is short, and each of its sentences."""
    sentences = _SENTENCE_END.split(answer)
    whole = (answer,) if len(answer.split()) <= _LONGEST_ANSWER else ()
    return (*whole, *sentences)


_FIXED = tuple(
    dict.fromkeys(
        piece
        for text in (
            *SMALL_TALK.values(),
            dialogs.REFUSAL,
            dialogs.FALLBACK.removeprefix(f"{dialogs.REFUSAL} "),
            *(dialogs.FALLBACK, dialogs.TOOL_FAILED, dialogs.WHICH_CITY, dialogs.HOW_LONG),
            *(dialogs.NAME_UNKNOWN, dialogs.NOTHING_SAID, dialogs.STOPPED),
        )
        for piece in _pieces(text)
    )
)


def _weather(rng: random.Random) -> str:
    size = rng.randint(0, 45)
    below = "minus " if 0 < size <= 20 and rng.random() < 0.35 else ""
    weather = (
        f"{below}{number_words(size)} {'degree' if size == 1 else 'degrees'} and {rng.choice(dialogs.SKIES)}"
    )
    city, day = rng.choice(CITIES).title(), rng.choice(DAYS)
    if rng.random() < 0.6:
        return f"It's {weather} in {city}."
    when = day.title() if day.startswith("to") else f"On {day.title()}"
    return f"{when} it will be {weather} in {city}."


def _clock(rng: random.Random) -> str:
    """A time as the agent's synthesizer reads it: 14:05 is ``fourteen zero five``."""
    hour, minute = rng.randrange(24), rng.randrange(60)
    tens = "zero " if minute < 10 else ""
    return f"It's {number_words(hour)} {tens}{number_words(minute)} in {rng.choice(CITIES).title()}."


def _timer(rng: random.Random) -> str:
    n, label = rng.randint(1, 60), rng.choice(LABELS)
    minutes = f"{number_words(n)} {'minute' if n == 1 else 'minutes'}"
    return rng.choice(
        (
            f"Okay, {minutes}, starting now.",
            f"Okay, {minutes} for the {label}, starting now.",
            f"Okay, {minutes} for the {label}, starting now.",
            f"Your {label} timer for {minutes} is running.",
        )
    )


def _name(rng: random.Random) -> str:
    name = rng.choice(NAMES).title()
    return rng.choice((f"Nice to meet you, {name}.", f"Your name is {name}."))


def _digits(rng: random.Random) -> str:
    digits = " ".join(rng.choice(ONES[:10]) for _ in range(rng.randint(3, 8)))
    return f"I heard {digits}. Is that right?"


def _sum(rng: random.Random) -> str:
    return f"It's {number_words(rng.randint(2, 20))}."


def answer(rng: random.Random) -> Answer:
    """Draw one answer; half are fixed ones."""
    if rng.random() < 0.5:
        return Answer(rng.choice(_FIXED))
    make = rng.choice((_weather, _weather, _clock, _clock, _timer, _timer, _name, _digits, _sum))
    return Answer(make(rng))


@dataclass(frozen=True)
class Line:
    """One clip to be made."""

    spoken: str
    text: str
    voice: Voice
    manner: Manner


@dataclass(frozen=True)
class Clips:
    """The clips of one split."""

    samples: Samples
    offsets: list[int]
    """Where each clip starts in ``samples``, and the end of the last: one more than there are clips."""
    texts: list[str]
    voices: list[str]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> Samples:
        return self.samples[self.offsets[index] : self.offsets[index + 1]]


def _draw(make: Callable[[random.Random], T], rng: random.Random, wanted: Callable[[T], bool]) -> T:
    while not wanted(drawn := make(rng)):
        pass
    return drawn


def _brief(utterance: domain.Utterance) -> bool:
    return len(utterance.text.split()) <= _BRIEF and not utterance.held_out


def _training_line(rng: random.Random) -> Line:
    kind = rng.random()
    if kind < 0.20:
        reply = _draw(answer, rng, lambda a: not a.held_out)
        if rng.random() < 0.5:
            return Line(reply.spoken, reply.text, AGENT_VOICE, Manner(rate=rng.uniform(0.93, 1.07)))
        return Line(reply.spoken, reply.text, training_voice(rng), varied_manner(rng))
    if kind < 0.34:
        text = _draw(domain.spoken, rng, _brief).text
    elif kind < 0.43:
        text = fragment(rng)
    elif kind < 0.48:
        text = joined(rng)
    else:
        text = _draw(domain.spoken, rng, lambda u: not u.held_out).text
    return Line(text, text, training_voice(rng), varied_manner(rng))


def _evaluation_line(split: str, rng: random.Random) -> Line:
    if split == "answers":
        reply = _draw(answer, rng, lambda a: a.held_out)
        return Line(reply.spoken, reply.text, AGENT_VOICE, Manner())
    wanted = _brief if split == "short_and_voices" else lambda u: u.held_out
    text = _draw(domain.spoken, rng, wanted).text
    if split == "sentences":
        return Line(text, text, training_voice(rng), Manner(rate=rng.uniform(0.9, 1.1)))
    return Line(text, text, rng.choice(HELD_OUT_VOICES), Manner(rate=rng.uniform(0.9, 1.1)))


def lines(split: str, count: int, seed: int) -> Iterator[Line]:
    """The lines of a split: the same for the same seed, and without repeats in evaluation splits."""
    rng = random.Random(f"{seed}/{split}")
    if split == "train":
        yield from (_training_line(rng) for _ in range(count))
        return
    seen: set[tuple[str, Voice]] = set()
    while len(seen) < count:
        line = _evaluation_line(split, rng)
        if (line.text, line.voice) not in seen:
            seen.add((line.text, line.voice))
            yield line


def _speak(line: Line) -> Samples:
    return say(line.spoken, line.voice, line.manner)


def make(split: str, count: int, seed: int, folder: Path, processes: int) -> Clips:
    """Synthesize a split into ``folder``, or load it if it is there."""
    index = folder / f"{split}.json"
    if not index.exists():
        folder.mkdir(parents=True, exist_ok=True)
        wanted = list(lines(split, count, seed))
        with Pool(processes) as pool:
            clips = pool.map(_speak, wanted, chunksize=32)
        offsets = np.cumsum([0] + [len(clip) for clip in clips])
        np.save(folder / f"{split}.npy", np.concatenate(clips))
        index.write_text(
            json.dumps(
                {
                    "texts": [line.text for line in wanted],
                    "voices": [str(line.voice) for line in wanted],
                    "offsets": offsets.tolist(),
                }
            )
        )
    stored = json.loads(index.read_text())
    return Clips(
        np.load(folder / f"{split}.npy", mmap_mode="r"), stored["offsets"], stored["texts"], stored["voices"]
    )
