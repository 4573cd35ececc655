"""Cuts and features of clips, the training loop of the end-of-turn network, and its held-out figures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from parley.audio.mel import mel_filters
from parley.turns.smart_turn import BANDS, SAMPLES, WhisperFeatures
from tiny.augment import Heard, worn
from tiny.speech import SAMPLE_RATE, Samples, edges
from tiny.training import Training
from tiny.turn_clips import Clip, Corpus
from tiny.turn_model import FRAMES, Probability, TurnNet
from tiny.turn_model import SAMPLES as SEEN

Audio = npt.NDArray[np.float32]
"""Mono audio at 16 kHz within ±1, shape ``[n]``."""
_WINDOW, _HOP = 400, 160
_exact = WhisperFeatures()
_hann = torch.hann_window(_WINDOW)
_filters = torch.from_numpy(mel_filters(BANDS, _WINDOW, SAMPLE_RATE))
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
BATCH = 32
_PEAK_RATE = 2e-3
_FREQUENCY_MASK = 16


def exact(turns: Sequence[Audio]) -> tuple[torch.Tensor, torch.Tensor]:
    """The network's inputs, as the server makes them."""
    rows = _rows(turns)
    return torch.from_numpy(_exact.compute(rows, FRAMES)), torch.from_numpy(rows[:, -SEEN:].copy())


def fast(turns: Sequence[Audio]) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in single precision, for many turns at once."""
    rows = torch.from_numpy(_rows(turns))
    deviation, mean = torch.std_mean(rows, dim=1, correction=0, keepdim=True)
    ends = (rows[:, -SEEN - _WINDOW // 2 :] - mean) / torch.sqrt(deviation.square() + 1e-7)
    padded = torch.nn.functional.pad(ends, (0, _WINDOW // 2), mode="reflect")
    spectrum = torch.stft(padded, _WINDOW, _HOP, window=_hann, center=False, return_complex=True)
    power = spectrum.real.square() + spectrum.imag.square()
    decades = torch.log10(torch.clamp(_filters @ power[:, :, :FRAMES], min=1e-10))
    loudest = decades.amax(dim=(1, 2), keepdim=True)
    return (torch.maximum(decades, loudest - 8.0) + 4.0) / 4.0, rows[:, -SEEN:]


def _rows(turns: Sequence[Audio]) -> npt.NDArray[np.float32]:
    rows = np.zeros((len(turns), SAMPLES), np.float32)
    for row, turn in zip(rows, turns, strict=True):
        end = turn[-SAMPLES:]
        row[SAMPLES - len(end) :] = end
    return rows


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
    """About where a word begins; it is not exact. In half of the cases the quietest place there."""
    if rng.random() < 0.5:
        return max(_SHORTEST, place + int(rng.normal(0, 12 * PER_MS)))
    start = max(_SHORTEST, place - 50 * PER_MS)
    around = speech[start : max(start + 1, place + 20 * PER_MS)].astype(np.float32)
    return start + int(np.argmin(np.convolve(np.square(around), np.ones(5 * PER_MS), "same")))


def _faded(speech: Samples, rng: np.random.Generator) -> Samples:
    """As a speaker falls silent: at once, or within 30 ms; whole clips too, so that it betrays nothing."""
    if rng.random() < 0.4:
        return speech
    length = min(len(speech), int(rng.uniform(2, 30) * PER_MS))
    faded = speech.copy()
    faded[-length:] = (faded[-length:] * np.linspace(1, 0, length)).astype(np.int16)
    return faded


@dataclass(frozen=True)
class Trial:
    """One turn of an evaluation."""

    group: str
    """The sentences and voices of the examples."""
    kind: str
    family: str
    over: bool
    audio: Audio


def trials(group: str, corpus: Corpus, seed: int, *, noisy: bool) -> Iterator[Trial]:
    """Every clip of a split whole, and cut at each of its word boundaries.

    200 ms of silence follow; ``noisy`` wears them as the training does.
    """
    rng = np.random.default_rng(seed)
    for clip in corpus.clips:
        turns = [whole(corpus, clip)] + [cut(corpus, clip, place) for _, place in clip.boundaries]
        for turn in turns:
            if len(turn.speech) < 60 * PER_MS:
                continue
            if noisy:
                audio = heard(turn.speech, rng)
            else:
                audio = np.pad(turn.speech.astype(np.float32) / 32768, (SAMPLE_RATE // 4, SAMPLE_RATE // 5))
            yield Trial(group, clip.kind, clip.voice.split("+")[0], turn.over, audio)


def probabilities(network: Probability, some: list[Trial]) -> np.ndarray:
    """f32 ``[n]``."""
    found = []
    with torch.inference_mode():
        for start in range(0, len(some), 64):
            inputs = exact([trial.audio for trial in some[start : start + 64]])
            found.append(network(*inputs)[:, 0].numpy())
    return np.concatenate(found)


class Trainer(Training):
    """Trains a new network; every random choice follows from ``seed`` and the step."""

    def __init__(self, sentences: Corpus, beginnings: Corpus, work: Path, *, seed: int) -> None:
        self._corpora = sentences, beginnings
        self._seed = seed
        self.network = TurnNet()
        super().__init__(
            work / "checkpoint.pt", {"network": self.network}, peak=_PEAK_RATE, least=0.005, weight_decay=1e-2
        )

    def _loss(self) -> tuple[torch.Tensor, tuple[float, ...]]:
        self.network.train()
        rng = np.random.default_rng((self._seed, self._step))
        turns = [draw(*self._corpora, rng) for _ in range(BATCH)]
        features, audio = fast([heard(turn.speech, rng) for turn in turns])
        wanted = torch.tensor([[float(turn.over)] for turn in turns])
        loss = binary_cross_entropy_with_logits(
            self.network(_masked(features, rng), audio), wanted * 0.98 + 0.01
        )
        return loss, (loss.item(),)


def _masked(features: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """With a stretch of bands hidden in half of the rows."""
    for row in features:
        if rng.random() < 0.5:
            width = int(rng.integers(1, _FREQUENCY_MASK))
            first = int(rng.integers(0, len(row) - width))
            row[first : first + width] = row.min()
    return features


def figures(
    some: list[Trial], found: np.ndarray, threshold: float
) -> Mapping[tuple[str, str], tuple[float, float]]:
    """For each group and kind or voices: the shares of whole turns and of cut ones that are heard as such."""
    right: dict[tuple[str, str], tuple[list[bool], list[bool]]] = defaultdict(lambda: ([], []))
    for trial, probability in zip(some, found, strict=True):
        for label in ("all", trial.kind, trial.family):
            right[trial.group, label][not trial.over].append((probability >= threshold) == trial.over)
    return {key: (_share(whole), _share(cut_off)) for key, (whole, cut_off) in right.items()}


def _share(outcomes: list[bool]) -> float:
    return float(np.mean(outcomes)) if outcomes else float("nan")
