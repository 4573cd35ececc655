"""What the end-of-turn network hears: clips, whole or cut off, the silence after them, and the line."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tiny.augment import Heard, worn
from tiny.speech import SAMPLE_RATE, Samples, edges
from tiny.turn_clips import Clip, Corpus
from tiny.turn_model import SAMPLES as SEEN

PER_MS = SAMPLE_RATE // 1000
_WHOLE = 0.5
"""Share of whole clips."""
_BEGINNINGS = 0.3
"""Share of turns from :mod:`tiny.turn_clips`' ``beginnings``."""
_ANYWHERE = 0.15
"""Share of cuts that are not between words."""
_UNCLEAR = 250 * PER_MS
"""Nothing is cut off so near a clip's end: it might be heard as whole."""
_SHORTEST = 60 * PER_MS
_EARLIER_PAUSE = 0.25


@dataclass(frozen=True)
class Turn:
    """Speech up to a pause."""

    speech: Samples
    over: bool


def whole(corpus: Corpus, clip: Clip) -> Turn:
    """The whole clip."""
    return Turn(corpus.speech(clip), over=True)


def cut(corpus: Corpus, clip: Clip, sample: int) -> Turn:
    """The clip up to ``sample``, without the silence that it may have there already."""
    speech = corpus.speech(clip)[:sample]
    return Turn(speech[slice(*edges(speech))], over=False)


def draw(sentences: Corpus, beginnings: Corpus, rng: np.random.Generator) -> Turn:
    """A turn for the training, perhaps with a pause within it that the speaker went on after."""
    while True:
        corpus = beginnings if rng.random() < _BEGINNINGS else sentences
        clip = corpus.clips[rng.integers(len(corpus.clips))]
        length = clip.end - clip.start
        last = length - _UNCLEAR
        places = [place for _, place in clip.boundaries if place <= last]
        if rng.random() < _WHOLE:
            turn = whole(corpus, clip)
        elif rng.random() < _ANYWHERE and last > _UNCLEAR:
            turn = cut(corpus, clip, int(rng.integers(_UNCLEAR, last)))
        elif places:
            turn = cut(corpus, clip, _near(corpus.speech(clip), places[rng.integers(len(places))], rng))
        else:
            continue
        if len(turn.speech) < _SHORTEST:
            continue
        speech = _faded(turn.speech, rng)
        before = [place for place in places if place < len(speech) - 100 * PER_MS]
        if before and rng.random() < _EARLIER_PAUSE:
            place = before[rng.integers(len(before))]
            pause = np.zeros(int(rng.uniform(0.2, 1.5) * SAMPLE_RATE), np.int16)
            speech = np.concatenate([_faded(speech[:place], rng), pause, speech[place:]])
        return Turn(speech, turn.over)


def heard(speech: Samples, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """A turn with 120 to 450 ms of silence after it, over a line of some quality; f32 ``[n]`` within ±1."""
    speech = speech[-SEEN:]
    before = round(rng.uniform(0.02, 0.6) * SAMPLE_RATE)
    after = round(rng.uniform(0.12, 0.45) * SAMPLE_RATE)
    # The noise is made by Fourier transforms, which are slow for most other lengths.
    before += -(before + len(speech) + after) % 3200
    audio = np.pad(speech.astype(np.float32) / 32768, (before, after))
    return worn(Heard(audio, (before, before + len(speech))), rng).audio


def _near(speech: Samples, place: int, rng: np.random.Generator) -> int:
    """About where a word begins: nobody can say it exactly. In half of the cases the quietest place there."""
    if rng.random() < 0.5:
        return max(_SHORTEST, place + int(rng.normal(0, 12 * PER_MS)))
    start = max(_SHORTEST, place - 50 * PER_MS)
    around = speech[start : max(start + 1, place + 20 * PER_MS)].astype(np.float32)
    return start + int(np.argmin(np.convolve(np.square(around), np.ones(5 * PER_MS), "same")))


def _faded(speech: Samples, rng: np.random.Generator) -> Samples:
    """As somebody falls silent: at once, or within 30 ms; whole clips too, so that it betrays nothing."""
    if rng.random() < 0.4:
        return speech
    length = min(len(speech), int(rng.uniform(2, 30) * PER_MS))
    faded = speech.copy()
    faded[-length:] = (faded[-length:] * np.linspace(1, 0, length)).astype(np.int16)
    return faded
