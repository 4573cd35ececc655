"""The texts and clips of the end-of-turn network, and where a clip may be cut."""

from __future__ import annotations

import json
import random
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from multiprocessing import Pool
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tiny import callers, domain, words
from tiny.fragments import fragment, joined
from tiny.speech import HELD_OUT_VOICES, Manner, Samples, Voice, training_voice, varied_manner
from tiny.timed_speech import TimedSpeech, say_timed

Kind = Literal["domain", "short", "digits", "general"]

_TEXTS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("turn_texts.toml").read_text())
_SHORT: list[str] = _TEXTS["short"]
_BLANKS = (
    "person person2 thing thing2 place time past plain plain2 quality start word word2"  # of the templates
).split()
TRAINING_CLIPS = 10_000
BEGINNING_CLIPS = 5_000
_TEST_SENTENCES = 60
_TEST_SHORT = 60


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


@dataclass(frozen=True)
class Clip:
    """What is known of one clip."""

    kind: Kind
    text: str
    voice: str
    start: int
    """Its first sample in the corpus."""
    end: int
    boundaries: list[tuple[int, int]]
    """Words so far and the sample, counted from the clip's first, at which the next one begins."""


@dataclass(frozen=True)
class Corpus:
    """All clips of a split."""

    samples: Samples
    clips: list[Clip]

    def speech(self, clip: Clip) -> Samples:
        """The clip's audio, i16 ``[samples]``."""
        return self.samples[clip.start : clip.end]


@dataclass(frozen=True)
class _Line:
    kind: Kind
    text: str
    voice: Voice
    manner: Manner


def make(split: str, seed: int, folder: Path, processes: int) -> Corpus:
    """Synthesize a split into ``folder``, or load it if it is there.

    Args:
        split: ``train``; ``beginnings`` (of sentences of the training, spoken by the same voices as if
            they were all that is said: with them, words alone do not tell what is over); ``sentences``
            (held-out sentences, training voices); ``voices`` (held-out voices, short turns of the training);
            ``both`` (held-out sentences and voices).
        seed: of the texts, voices and manners.
        folder: where ``<split>.npy`` and ``<split>.json`` are.
        processes: synthesizers at a time.
    """
    index = folder / f"{split}.json"
    if not index.exists():
        folder.mkdir(parents=True, exist_ok=True)
        wanted = list(_lines(split, seed))
        with Pool(processes) as pool:
            spoken = pool.map(_speak, wanted, chunksize=4)
        clips, pieces, start = [], [], 0
        for line, speech in zip(wanted, spoken, strict=True):
            end = start + len(speech.samples)
            clips.append(asdict(Clip(line.kind, line.text, str(line.voice), start, end, speech.boundaries)))
            pieces.append(speech.samples)
            start = end
        np.save(folder / f"{split}.npy", np.concatenate(pieces))
        index.write_text(json.dumps(clips))
    return Corpus(
        np.load(folder / f"{split}.npy", mmap_mode="r"),
        [Clip(**entry) for entry in json.loads(index.read_text())],
    )


def _lines(split: str, seed: int) -> Iterator[_Line]:
    rng = random.Random(f"{seed}/turns/{split}")
    if split == "train":
        for _ in range(TRAINING_CLIPS):
            yield _Line(*training_text(rng), training_voice(rng), varied_manner(rng))
        return
    if split == "beginnings":
        whole = [line for line in _lines("train", seed) if " " in line.text]
        for line in rng.sample(whole, BEGINNING_CLIPS):
            words = line.text.rstrip(".?!").split()
            beginning = " ".join(words[: rng.randint(1, len(words) - 1)]).rstrip(",")
            yield replace(line, text=beginning)
        return
    texts = test_texts(rng, _TEST_SENTENCES)
    if split == "voices":
        texts = [("short", text) for text in rng.sample(short_known_texts(), _TEST_SHORT)]
    for kind, text in texts:
        voices = [training_voice(rng), training_voice(rng)] if split == "sentences" else HELD_OUT_VOICES
        for voice in voices:
            yield _Line(kind, text, voice, Manner(rate=rng.uniform(0.85, 1.15), pitch=rng.uniform(0.9, 1.1)))


def _speak(line: _Line) -> TimedSpeech:
    return say_timed(line.text, line.voice, line.manner)
