"""The clips of the end-of-turn network: who says what, and where it may be cut."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from multiprocessing import Pool
from pathlib import Path

import numpy as np

from tiny.speech import HELD_OUT_VOICES, Manner, Samples, Voice, training_voice, varied_manner
from tiny.timed_speech import TimedSpeech, say_timed
from tiny.turn_texts import Kind, short_known_texts, test_texts, training_text

TRAINING_CLIPS = 10_000
BEGINNING_CLIPS = 5_000
_TEST_SENTENCES = 60
_TEST_SHORT = 60


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
