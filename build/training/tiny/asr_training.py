"""The training loop of the tiny recognisers: flat start, then transducer and CTC together, on one CPU."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jiwer
import numpy as np
import numpy.typing as npt
import sentencepiece
import torch
from nemo.collections.asr.models import EncDecRNNTBPEModel

from tiny.asr_model import ENCODER_WIDTH, FEATURES, FRAME, SILENCE
from tiny.augment import Heard, clean, silent, varied
from tiny.corpus import Clips
from tiny.speech import SAMPLE_RATE, Samples
from tiny.training import Training

_WORD_START = "\u2581"
_WORD_START_LENGTH = 0.3
BATCH = 16
PEAK_RATE = 1.2e-3
CTC_SHARE = 0.3
SILENT_SHARE = 0.03
"""Share of training clips that are replaced by a segment without speech."""
_TRIAL = 64
_FREQUENCY_MASK = 12
_TIME_MASK = 0.05


def token_lengths(tokenizer: sentencepiece.SentencePieceProcessor) -> npt.NDArray[np.float64]:
    """How long each token is likely to sound, ``[V]``: its letters, and a little for a word boundary."""
    pieces = [tokenizer.id_to_piece(token) for token in range(tokenizer.vocab_size())]
    return np.array(
        [
            len(piece.lstrip(_WORD_START)) + _WORD_START_LENGTH * piece.startswith(_WORD_START)
            for piece in pieces
        ]
    )


def frame_labels(
    tokens: Sequence[int],
    span: tuple[int, int],
    frames: int,
    blank: int,
    lengths: npt.NDArray[np.float64],
) -> npt.NDArray[np.int64]:
    """The label of each encoder frame: ``tokens`` over the speech, ``blank`` around it.

    Args:
        tokens: Token ids of the clip.
        span: First and last sample of speech.
        frames: Number of labels to return.
        blank: Label of frames without speech.
        lengths: :func:`token_lengths`.
    """
    labels = np.full(frames, blank, dtype=np.int64)
    if not tokens:
        return labels
    centres = (np.arange(frames) + 0.5) * FRAME
    ends = np.cumsum(lengths[list(tokens)])
    progress = (centres - span[0]) / (span[1] - span[0]) * ends[-1]
    voiced = (progress >= 0) & (progress < ends[-1])
    labels[voiced] = np.asarray(tokens)[np.searchsorted(ends, progress[voiced], side="right")]
    return labels


@dataclass(frozen=True)
class Recipe:
    """What one recogniser needs differently from another."""

    loss: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
    """From joint logits ``[B, T, U + 1, ...]``, targets ``[B, U]``, frames and tokens ``[B]`` to ``[B]``."""
    flat_steps: int = 400
    """Steps of the flat start."""
    hidden: float = 0.0
    """What the features of a masked band or stretch become: about their mean."""
    history: int = 0
    """Feature frames of digital silence before each clip."""
    hear: Callable[[Samples, np.random.Generator], Heard] = varied
    """How a clip of the training reaches the recogniser."""


@dataclass(frozen=True)
class _Batch:
    heard: list[Heard]
    tokens: list[list[int]]

    @property
    def counts(self) -> torch.Tensor:
        """i64 ``[B]``, tokens of each row."""
        return torch.tensor([len(row) for row in self.tokens])

    @property
    def targets(self) -> torch.Tensor:
        """i64 ``[B, U]``, padded with token 0."""
        width = max(1, *(len(row) for row in self.tokens))
        return torch.tensor([row + [0] * (width - len(row)) for row in self.tokens])


class Trainer(Training):
    """Trains ``model`` on ``clips``; every random choice follows from ``seed`` and the step.

    ``ctc`` are weights for the auxiliary output to start with.  The word error rate on ``trials`` is reported
    now and then.
    """

    def __init__(
        self,
        model: EncDecRNNTBPEModel,
        tokenizer: sentencepiece.SentencePieceProcessor,
        clips: Clips,
        folder: Path,
        *,
        seed: int,
        recipe: Recipe,
        trials: Mapping[str, Clips],
        ctc: dict[str, torch.Tensor] | None = None,
    ) -> None:
        self.model = model
        self._tokenizer = tokenizer
        self._clips = clips
        self._seed = seed
        self._recipe = recipe
        self._trials = trials
        self._blank = tokenizer.vocab_size()
        self._token_lengths = token_lengths(tokenizer)
        self._ctc = torch.nn.Linear(ENCODER_WIDTH, self._blank + 1)
        if ctc is not None:
            self._ctc.load_state_dict(ctc)
        modules = {"model": model, "ctc": self._ctc}
        super().__init__(
            folder / "checkpoint.pt",
            modules,
            peak=PEAK_RATE,
            least=0.02,
            betas=(0.9, 0.98),
            weight_decay=1e-3,
        )
        self._order = itertools.islice(self._batches(), self._step, None)

    def _on_saved(self) -> None:
        rates = {name: wer(self.model, c, _TRIAL, self._recipe.history) for name, c in self._trials.items()}
        print(" ".join(f"{name} {rate:.1%}" for name, rate in rates.items()), flush=True)

    def _batches(self) -> Iterator[list[int]]:
        """Clips of about equal length together; only the shortest third during the flat start."""
        lengths = np.diff(self._clips.offsets)
        flat_batches, flat_steps = 0, self._recipe.flat_steps
        for epoch in itertools.count():
            rng = np.random.default_rng((self._seed, 0, epoch))
            order = np.argsort(lengths + rng.uniform(0, SAMPLE_RATE / 2, len(lengths)))
            if flat_batches < flat_steps:
                order = order[: len(order) // 3]
            batches = [order[i : i + BATCH].tolist() for i in range(0, len(order) - BATCH + 1, BATCH)]
            rng.shuffle(batches)
            if flat_batches < flat_steps:
                batches = batches[: flat_steps - flat_batches]
                flat_batches += len(batches)
            yield from batches

    def _loss(self) -> tuple[torch.Tensor, tuple[float, ...]]:
        """The loss of the next batch; the main loss (per token) and the CTC loss."""
        rng = np.random.default_rng((self._seed, 1, self._step))
        seed = int(rng.integers(2**31))
        torch.manual_seed(seed)
        random.seed(seed)  # NeMo draws a batch's look-ahead from it.
        batch = self._batch(next(self._order), rng)
        self.model.train()
        features, lengths = features_of(self.model, batch.heard, self._recipe.history)
        _mask(features, lengths, self._recipe.hidden, rng)
        encoded, frames = self.model.encoder(audio_signal=features, length=lengths)
        encoded = encoded.transpose(1, 2)
        targets, counts = batch.targets, batch.counts
        log_probs = torch.log_softmax(self._ctc(encoded), -1)
        ctc = torch.nn.functional.ctc_loss(
            log_probs.transpose(0, 1), targets, frames, counts, blank=self._blank, zero_infinity=True
        )
        if self._step < self._recipe.flat_steps:
            main = torch.nn.functional.nll_loss(
                log_probs.flatten(0, 1), self._flat_labels(batch, log_probs.shape[1])
            )
            loss = main + 0.1 * ctc
        else:
            predicted, *_ = self.model.decoder(targets=targets.int(), target_length=counts)
            logits = self.model.joint.joint(encoded, predicted.transpose(1, 2))
            nll = self._recipe.loss(logits, targets, frames, counts)
            main = (nll / counts.clamp(min=1)).mean()
            loss = (1 - CTC_SHARE) * main + CTC_SHARE * ctc
        return loss, (main.item(), ctc.item())

    def _batch(self, indices: Sequence[int], rng: np.random.Generator) -> _Batch:
        heard: list[Heard] = []
        tokens: list[list[int]] = []
        for index in indices:
            speech = self._clips[index]
            if rng.random() < SILENT_SHARE:
                heard.append(silent(rng.uniform(0.3, 0.5 + len(speech) / SAMPLE_RATE), rng))
                tokens.append([])
            else:
                heard.append(self._recipe.hear(speech, rng))
                tokens.append(self._tokenizer.encode(self._clips.texts[index]))
        return _Batch(heard, tokens)

    def _flat_labels(self, batch: _Batch, frames: int) -> torch.Tensor:
        labels = [
            frame_labels(tokens, clip.span, frames, self._blank, self._token_lengths)
            for tokens, clip in zip(batch.tokens, batch.heard, strict=True)
        ]
        return torch.from_numpy(np.concatenate(labels))


def transcribe(model: EncDecRNNTBPEModel, heard: Sequence[Heard], history: int = 0) -> list[str]:
    """Greedy transcripts by NeMo, decoded as one padded batch, after ``history`` frames of silence."""
    model.eval()
    with torch.no_grad():
        features, lengths = features_of(model, heard, history)
        encoded, frames = model.encoder(audio_signal=features, length=lengths)
        hypotheses = model.decoding.rnnt_decoder_predictions_tensor(encoded, frames, return_hypotheses=False)
    return [hypothesis.text for hypothesis in hypotheses]


def wer(model: EncDecRNNTBPEModel, clips: Clips, count: int, history: int = 0) -> float:
    """Word error rate of the first ``count`` clean clips, 0 to 1."""
    hypotheses: list[str] = []
    for start in range(0, min(count, len(clips)), BATCH):
        stop = min(start + BATCH, count, len(clips))
        hypotheses += transcribe(model, [clean(clips[index]) for index in range(start, stop)], history)
    return float(jiwer.wer(clips.texts[: len(hypotheses)], hypotheses))


def features_of(
    model: EncDecRNNTBPEModel, heard: Sequence[Heard], history: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Features of clips in one padded batch, after ``history`` frames of silence.

    Returns:
        f32 ``[B, F, history + frames]``, which the caller may change, and lengths i64 ``[B]``.
    """
    audio, lengths = _stack(heard)
    features, frames = model.preprocessor(input_signal=audio, length=lengths)
    return torch.nn.functional.pad(features, (history, 0), value=SILENCE), frames + history


def _stack(heard: Sequence[Heard]) -> tuple[torch.Tensor, torch.Tensor]:
    """Audio f32 ``[B, samples]``, padded with zeros, and lengths i64 ``[B]``."""
    lengths = [len(clip.audio) for clip in heard]
    audio: npt.NDArray[np.float32] = np.zeros((len(heard), max(lengths)), np.float32)
    for row, clip in zip(audio, heard, strict=True):
        row[: len(clip.audio)] = clip.audio
    return torch.from_numpy(audio), torch.tensor(lengths)


def _mask(features: torch.Tensor, lengths: torch.Tensor, hidden: float, rng: np.random.Generator) -> None:
    """Hide one band and one stretch of each row (https://arxiv.org/abs/1904.08779), lightly and in place."""
    for row, length in zip(features, lengths.tolist(), strict=True):
        band = int(rng.integers(0, _FREQUENCY_MASK + 1))
        low = int(rng.integers(0, FEATURES - band + 1))
        row[low : low + band] = hidden
        stretch = int(rng.integers(0, max(1, int(length * _TIME_MASK)) + 1))
        start = int(rng.integers(0, length - stretch + 1))
        row[:, start : start + stretch] = hidden
