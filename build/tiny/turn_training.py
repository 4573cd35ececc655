"""The training loop of the end-of-turn network, and its figures on held-out sentences and voices."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from tiny.speech import SAMPLE_RATE
from tiny.turn_clips import Corpus
from tiny.turn_cuts import PER_MS, cut, draw, heard, whole
from tiny.turn_features import Audio, exact, fast
from tiny.turn_model import Probability, TurnNet

BATCH = 32
_PEAK_RATE = 2e-3
_WARM_UP_STEPS = 200
_REPORT_EVERY = 200
_SAVE_EVERY = 500
_FREQUENCY_MASK = 16


@dataclass(frozen=True)
class Trial:
    """One turn of an evaluation."""

    group: str
    """Of which sentences and voices."""
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


class Trainer:
    """Trains for a number of minutes or steps; a stopped run continues from its checkpoint."""

    def __init__(self, sentences: Corpus, beginnings: Corpus, work: Path, *, seed: int) -> None:
        self._corpora = sentences, beginnings
        self._file = work / "checkpoint.pt"
        self._seed = seed
        self.network = TurnNet()
        self._optimizer = torch.optim.AdamW(self.network.parameters(), lr=_PEAK_RATE, weight_decay=1e-2)
        self._step = 0
        self._seconds = 0.0
        if self._file.exists():
            known = torch.load(self._file, weights_only=True)
            self.network.load_state_dict(known["network"])
            self._optimizer.load_state_dict(known["optimizer"])
            self._step, self._seconds = known["step"], known["seconds"]

    def run(self, minutes: float, steps: int | None) -> None:
        """Train until the minutes, counted over all runs, or the steps are used up."""
        self.network.train()
        started, losses = time.monotonic() - self._seconds, []
        while True:
            self._seconds = time.monotonic() - started
            spent = self._step / steps if steps else self._seconds / 60 / minutes
            if spent >= 1:
                break
            losses.append(self._learn(spent))
            if self._step % _REPORT_EVERY == 0:
                print(f"{self._seconds / 60:5.1f} min, step {self._step}: {np.mean(losses):.3f}", flush=True)
                losses = []
            if self._step % _SAVE_EVERY == 0:
                self.save()
        self.save()

    def _learn(self, spent: float) -> float:
        rng = np.random.default_rng((self._seed, self._step))
        warm = min(1.0, (self._step + 1) / _WARM_UP_STEPS)
        rate = _PEAK_RATE * warm * (0.5 + 0.5 * math.cos(math.pi * spent))
        for group in self._optimizer.param_groups:
            group["lr"] = max(rate, 1e-5)
        turns = [draw(*self._corpora, rng) for _ in range(BATCH)]
        features, audio = fast([heard(turn.speech, rng) for turn in turns])
        wanted = torch.tensor([[float(turn.over)] for turn in turns])
        loss = binary_cross_entropy_with_logits(
            self.network(_masked(features, rng), audio), wanted * 0.98 + 0.01
        )
        self._optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self._optimizer.step()
        self._step += 1
        return loss.item()

    def save(self) -> None:
        """Write the checkpoint."""
        part = self._file.with_suffix(".part")
        torch.save(
            {
                "network": self.network.state_dict(),
                "optimizer": self._optimizer.state_dict(),
                "step": self._step,
                "seconds": self._seconds,
            },
            part,
        )
        part.replace(self._file)


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
