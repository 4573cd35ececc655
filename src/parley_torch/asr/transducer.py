"""Prediction and joint networks in torch, and greedy decoding that stays on the device.

:class:`GreedyDecoder` decodes as :class:`parley.asr.decoding.greedy.TransducerDecoder` does. Each step
finds the next token of every row at once, whichever frame the row is at. A fixed number of steps is one
sequence of operations without a decision on the host, and can be captured as a CUDA graph; it is repeated
until no row has frames left.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from parley.asr.checkpoint import Checkpoint
from parley.asr.decoding.greedy import CONFIDENCE_ALPHA, FRAMES_AHEAD, Tokens
from parley.errors import InferenceError, ModelLoadingError
from parley_torch.asr.weights import layer_count

_LSTM = "decoder.prediction.dec_rnn.lstm"
_OUT = re.compile(r"joint\.joint_net\.\d+\.(weight|bias)")


class Transducer:
    """The networks, in single precision.

    Args:
        weights: with NeMo's names.
        blank: id of the blank.
        durations: frames that each duration class stands for; none for an RNN-T.
        device: where they run.

    Raises:
        ModelLoadingError: weights are missing or do not belong together.
    """

    def __init__(
        self, weights: Mapping[str, Tensor], *, blank: int, durations: Sequence[int], device: torch.device
    ) -> None:
        def own(name: str) -> Tensor:
            return weights[name].to(device, torch.float32).contiguous()

        try:
            self._embedding = own("decoder.prediction.embed.weight")
            self._lstm = [
                [own(f"{_LSTM}.{kind}_l{layer}") for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
                for layer in range(layer_count(weights, rf"{re.escape(_LSTM)}\.weight_ih_l(\d+)"))
            ]
            self._encoded = own("joint.enc.weight"), own("joint.enc.bias")
            self._predicted = own("joint.pred.weight"), own("joint.pred.bias")
            out = {match[1]: name for name in weights if (match := _OUT.fullmatch(name))}
            self._out = own(out["weight"]), own(out["bias"])
        except KeyError as error:
            raise ModelLoadingError(f"the weights have no {error}: this is no transducer") from error
        classes = blank + 1 + len(durations)
        if len(self._out[1]) != classes or len(self._embedding) != blank + 1:
            raise ModelLoadingError(
                f"the joint network scores {len(self._out[1])} classes; "
                f"{blank} tokens, a blank and {len(durations)} durations are {classes}"
            )
        self.blank = blank
        self.durations = tuple(durations)
        self.device = device
        self.layers = len(self._lstm)
        self.width = self._lstm[0][1].shape[1]
        self.inputs = self._encoded[0].shape[1]
        self.joint_width = self._encoded[0].shape[0]

    @classmethod
    def of(cls, weights: Mapping[str, Tensor], checkpoint: Checkpoint, device: torch.device) -> Transducer:
        """The networks of an export."""
        return cls(weights, blank=checkpoint.blank, durations=checkpoint.config.durations, device=device)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights."""
        own = [self._embedding, *(part for layer in self._lstm for part in layer)]
        own += [*self._encoded, *self._predicted, *self._out]
        return sum(tensor.nbytes for tensor in own)

    def project(self, encoded: Tensor) -> Tensor:
        """``[..., inputs]`` to what the joint network makes of it: ``[..., joint_width]``."""
        return functional.linear(encoded.float(), *self._encoded)

    def predict(self, targets: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The prediction network's next step.

        Args:
            targets: i64 ``[B]``, each row's last token.
            hidden: f32 ``[B, layers, width]``.
            cell: f32 ``[B, layers, width]``.

        Returns:
            ``[B, joint_width]`` for :meth:`score`, and the states after the targets.
        """
        value = self._embedding.index_select(0, targets)
        hiddens, cells = [], []
        for layer, parts in enumerate(self._lstm):
            value, after = torch.lstm_cell(value, (hidden[:, layer], cell[:, layer]), *parts)
            hiddens.append(value)
            cells.append(after)
        return functional.linear(value, *self._predicted), torch.stack(hiddens, 1), torch.stack(cells, 1)

    def score(self, projected: Tensor, predicted: Tensor) -> Tensor:
        """Scores ``[B, T, classes]`` of projected frames after what was predicted, ``[B, joint_width]``."""
        return functional.linear(functional.relu(projected + predicted[:, None]), *self._out)


def tsallis_confidence(logits: Tensor) -> Tensor:
    """See :func:`parley.asr.decoding.greedy.tsallis_confidence`: f32 ``[B, n]`` to ``[B]``."""
    rest = 1.0 - CONFIDENCE_ALPHA
    powers = (logits.float().log_softmax(-1) * CONFIDENCE_ALPHA).exp().sum(-1)
    uniform = math.exp((1.0 - logits.shape[-1] ** rest) / rest)
    return ((((1.0 - powers) / rest).exp() - uniform) / (1.0 - uniform)).clamp(0.0, 1.0)


@dataclass(frozen=True)
class DecoderPool:
    """What decoding remembers of streams: rows of preallocated tensors on the device."""

    targets: Tensor
    """i64 ``[rows]``: the last token, at first the blank."""
    hidden: Tensor
    """f32 ``[rows, layers, width]``."""
    cell: Tensor
    """As ``hidden``."""
    skip: Tensor
    """i64 ``[rows]``: frames of the next piece that are already passed over."""

    @classmethod
    def allocate(cls, network: Transducer, rows: int) -> DecoderPool:
        """Rows of streams that have not begun."""
        shape = (rows, network.layers, network.width)
        return cls(
            torch.full((rows,), network.blank, dtype=torch.int64, device=network.device),
            torch.zeros(shape, device=network.device),
            torch.zeros(shape, device=network.device),
            torch.zeros(rows, dtype=torch.int64, device=network.device),
        )

    def gather(self, rows: Tensor) -> DecoderPool:
        """Copies of some rows: i64 ``[B]``."""
        return DecoderPool(*(getattr(self, field.name).index_select(0, rows) for field in fields(self)))

    def scatter(self, rows: Tensor, values: DecoderPool) -> None:
        """Write rows."""
        for field in fields(self):
            getattr(self, field.name).index_copy_(0, rows, getattr(values, field.name))

    def nbytes(self) -> int:
        """Bytes of all rows."""
        return sum(getattr(self, field.name).nbytes for field in fields(self))


@dataclass(frozen=True)
class Progress:
    """Where decoding a piece stands, between two runs of its steps; all ``[B]`` but ``projected``."""

    projected: Tensor
    """f32 ``[B, T, joint_width]``."""
    lengths: Tensor
    """i64: real frames."""
    at: Tensor
    """i64: the frame."""
    symbols: Tensor
    """i64: tokens at this frame."""
    failed: Tensor
    """bool: the row's values are not finite; it is not decoded any further."""
    state: DecoderPool

    def store(self, values: Progress) -> None:
        """Take over the values of another one, in this one's memory."""
        for name in ("projected", "lengths", "at", "symbols", "failed"):
            _copy(getattr(values, name), getattr(self, name))
        for field in fields(DecoderPool):
            _copy(getattr(values.state, field.name), getattr(self.state, field.name))


def _copy(values: Tensor, memory: Tensor) -> None:
    if values is not memory:
        memory.copy_(values)


COLUMNS = 4
"""Of a token: its id (-1: there is none), frame, duration and confidence."""


class GreedyDecoder:
    """The steps. Holds no state.

    Args:
        network: scores symbols.
        max_symbols: tokens allowed at one frame.
    """

    def __init__(self, network: Transducer, *, max_symbols: int) -> None:
        self.network = network
        self._max_symbols = max_symbols
        self._ahead = 1 if network.durations else FRAMES_AHEAD
        self._durations = torch.tensor(network.durations or (0,), device=network.device)

    def run(self, progress: Progress, steps: int) -> tuple[Progress, Tensor]:
        """Do some steps.

        Returns:
            Where they led, and what :func:`read_tokens` reads: i32 ``[B, 4 * steps + 2]``.
        """
        network, state = self.network, progress.state
        targets, hidden, cell = state.targets, state.hidden, state.cell
        at, symbols, failed = progress.at, progress.symbols, progress.failed
        frames = progress.projected.shape[1]
        last = progress.lengths - 1
        ahead = torch.arange(min(self._ahead, frames), device=at.device)
        columns: list[Tensor] = []
        for _ in range(steps):
            active = (at <= last) & ~failed
            predicted, next_hidden, next_cell = network.predict(targets, hidden, cell)
            places = torch.minimum(at[:, None] + ahead, last[:, None]).clamp(min=0)
            window = progress.projected.gather(1, places[:, :, None].expand(-1, -1, network.joint_width))
            scores = network.score(window, predicted)
            failed = failed | (active & ~scores.isfinite().flatten(1).all(1))
            active = active & ~failed
            best = scores[:, :, : network.blank + 1].argmax(2)
            # The first frame at which there is more than a blank, or else the last.
            found = best != network.blank
            first = torch.where(found.any(1), found.byte().argmax(1), len(ahead) - 1)[:, None]
            reached = places.gather(1, first)[:, 0]
            symbols = torch.where(active & (reached > at), 0, symbols)
            at = torch.where(active, reached, at)
            logits = scores.gather(1, first[:, :, None].expand(-1, -1, scores.shape[2]))[:, 0]
            ids = best.gather(1, first)[:, 0]
            speaks = active & (ids != network.blank)
            durations = self._durations_of(logits)
            confidences = tsallis_confidence(logits[:, : network.blank + 1])
            columns += [
                torch.where(speaks, ids, -1).int(),
                at.int(),
                durations.int(),
                confidences.contiguous().view(torch.int32),
            ]
            targets = torch.where(speaks, ids, targets)
            hidden = torch.where(speaks[:, None, None], next_hidden, hidden)
            cell = torch.where(speaks[:, None, None], next_cell, cell)
            symbols = symbols + speaks
            stuck = (durations == 0) & (~speaks | (symbols >= self._max_symbols))
            advance = torch.where(active, torch.where(stuck, 1, durations), 0)
            symbols = torch.where(advance > 0, 0, symbols)
            at = at + advance
        left = ((at <= last) & ~failed).int()
        skip = (at - progress.lengths).clamp(min=0)
        packed = torch.stack([*columns, left, failed.int()], dim=1)
        after = DecoderPool(targets, hidden, cell, skip)
        return Progress(progress.projected, progress.lengths, at, symbols, failed, after), packed

    def _durations_of(self, logits: Tensor) -> Tensor:
        if not self.network.durations:
            return torch.zeros(len(logits), dtype=torch.int64, device=logits.device)
        return self._durations.index_select(0, logits[:, self.network.blank + 1 :].argmax(1))


def read_tokens(runs: Sequence[NDArray[np.int32]]) -> list[Tokens | InferenceError]:
    """What each row emitted, from what its runs packed, i32 ``[B, n]`` each; an error where scores failed."""
    steps = np.concatenate([run[:, :-2].reshape(len(run), -1, COLUMNS) for run in runs], axis=1)
    failed = runs[-1][:, -1].astype(bool)
    return [
        InferenceError("the joint network's scores are not finite") if failed[row] else _tokens(own)
        for row, own in enumerate(steps)
    ]


def is_left(packed: NDArray[np.int32]) -> bool:
    """Whether some row has frames left after a run."""
    return bool(packed[:, -2].any())


def _tokens(steps: NDArray[np.int32]) -> Tokens:
    ids, frames, durations, confidences = steps[steps[:, 0] >= 0].T
    return Tokens(
        ids.copy(), frames.copy(), durations.copy(), np.ascontiguousarray(confidences).view(np.float32)
    )
