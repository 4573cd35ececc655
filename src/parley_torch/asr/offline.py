"""An offline encoder and transducer on a torch device, whose runs are captured when they are loaded.

A run has one of a few lengths and numbers of rows. More rows than fit are several runs. What is longer than
the longest size is decoded piece by piece, but cannot be encoded: nothing is captured while requests are
served. The networks run beside each other in two models, so encoded frames pass through the host's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parley.asr.decoding.batch import DecoderRows, Rows
from parley.asr.decoding.boosting import PhraseAutomaton
from parley.asr.decoding.greedy import SCORES, Tokens, TransducerDecoder
from parley.asr.decoding.hypotheses import Reading
from parley.errors import InferenceError, InvalidInputError, ParleyError
from parley.runtime.batching import check_rows, round_up
from parley.runtime.process_end import DeviceErrors
from parley_torch.asr.fastconformer import FastConformer
from parley_torch.asr.joint import DeviceJoint
from parley_torch.asr.transducer import (
    DecoderPool,
    GreedyDecoder,
    Progress,
    Transducer,
    is_left,
    read_tokens,
)
from parley_torch.runtime.cuda_graphs import Capture

_STEPS = 16
"""Of greedy decoding, in one sequence of operations."""


@dataclass(frozen=True)
class RunSizes:
    """Rising sizes to which runs are padded."""

    frames: tuple[int, ...]
    """Frames of the longest row."""
    rows: tuple[int, ...]
    """Rows; the smallest number is there for every length."""
    most: int
    """Largest product of both."""

    def rows_of(self, frames: int) -> list[int]:
        """Numbers of rows of this length, of which there is at least one."""
        return [rows for rows in self.rows if rows * frames <= self.most] or [self.rows[0]]

    def shapes(self) -> list[tuple[int, int]]:
        """All rows and frames, the largest first: smaller runs find room in its memory."""
        shapes = [(rows, frames) for frames in self.frames for rows in self.rows_of(frames)]
        return sorted(shapes, key=lambda shape: shape[0] * shape[1], reverse=True)

    def runs(self, lengths: NDArray[np.int64]) -> list[tuple[list[int], int, int]]:
        """Rows of these lengths in runs: which rows, and the rows and frames of the run.

        Raises:
            InvalidInputError: a row is longer than the longest size.
        """
        if len(lengths) and lengths.max() > self.frames[-1]:
            raise InvalidInputError(
                f"a row has {lengths.max()} frames; at most {self.frames[-1]} are prepared for"
            )
        found: list[tuple[list[int], int, int]] = []
        order = sorted(range(len(lengths)), key=lambda row: int(lengths[row]))
        for frames, group in groupby(order, lambda row: round_up(int(lengths[row]), self.frames)):
            members, sizes = list(group), self.rows_of(frames)
            for first in range(0, len(members), sizes[-1]):
                part = members[first : first + sizes[-1]]
                found.append((part, round_up(len(part), sizes), frames))
        return found


class DeviceEncoder:
    """:class:`parley.asr.parakeet.networks.OfflineEncoder` on a torch device, for the thread that made it.

    Args:
        network: on the device.
        sizes: of its runs, in feature frames.
        capture: records a run.
    """

    def __init__(self, network: FastConformer, sizes: RunSizes, capture: Capture) -> None:
        self._network = network
        self._sizes = sizes
        self._errors = DeviceErrors("the encoder")
        device = network.pre_encode.out.weight.device
        shapes = sizes.shapes()
        # The inputs of all runs share memory: only one runs at a time.
        largest = max(rows * frames for rows, frames in shapes)
        self._features = torch.zeros(largest * network.sizes.bands, device=device)
        self._lengths = torch.ones(sizes.rows[-1], dtype=torch.int64, device=device)
        with torch.inference_mode():
            # Positions of shorter rows are the middle of those of the longest.
            table = network.positions(0, network.sizes.subsampled(sizes.frames[-1]))
            self._runs = {shape: self._capture(shape, table, capture) for shape in shapes}

    @torch.inference_mode()
    def encode(
        self, features: NDArray[np.float32], lengths: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """See :meth:`parley.asr.parakeet.networks.OnnxEncoder.encode`.

        Raises:
            InvalidInputError: a row is longer than the longest size.
            RowsNotFiniteError: what was encoded of some rows is not finite.
            InferenceError: the device failed.
        """
        sizes = self._network.sizes
        counts = np.array([sizes.subsampled(int(length)) for length in lengths], np.int64)
        encoded = np.zeros((len(lengths), sizes.width, counts.max(initial=0)), np.float32)
        # Of a row without a frame the network makes NaN.
        filled = np.flatnonzero(lengths > 0)
        for chosen, rows, frames in self._sizes.runs(lengths[filled]):
            members = filled[chosen]
            longest = int(lengths[members].max())
            own = self._run(
                features[members][:, :, :longest].transpose(0, 2, 1), lengths[members], rows, frames
            )
            for row, values in zip(members, own, strict=True):
                encoded[row, :, : counts[row]] = values[: counts[row]].T
        check_rows(np.isfinite(encoded).all(axis=(1, 2)), "the encoder's output is", independent=True)
        return encoded, counts

    def _run(
        self, features: NDArray[np.float32], lengths: NDArray[np.int64], rows: int, frames: int
    ) -> NDArray[np.float32]:
        """A run of ``features`` f32 ``[n, T, bands]``, padded."""
        given = len(features)
        replay, result = self._runs[rows, frames]
        try:
            view = self._features_of(rows, frames)
            view.zero_()
            view[:given, : features.shape[1]].copy_(torch.from_numpy(np.ascontiguousarray(features)))
            # The network takes no row without a frame.
            self._lengths[:rows].fill_(1)
            self._lengths[:given].copy_(torch.from_numpy(lengths))
            replay()
            encoded: NDArray[np.float32] = result[:given].to("cpu", copy=True).numpy()
        except RuntimeError as error:
            self._errors.failed(error)
            raise InferenceError(f"the encoder failed on {[rows, frames]}: {error}") from error
        self._errors.worked()
        return encoded

    def _features_of(self, rows: int, frames: int) -> Tensor:
        bands = self._network.sizes.bands
        return self._features[: rows * frames * bands].view(rows, frames, bands)

    def _capture(
        self, shape: tuple[int, int], table: Sequence[Tensor], capture: Capture
    ) -> tuple[Callable[[], object], Tensor]:
        rows, frames = shape
        features, lengths = self._features_of(rows, frames), self._lengths[:rows]
        count, longest = self._network.sizes.subsampled(frames), (table[0].shape[2] + 1) // 2
        positions = [own[:, :, longest - count : longest + count - 1] for own in table]

        def run() -> Tensor:
            encoded: Tensor = self._network(features, lengths, positions)[0]
            return encoded.float()

        return capture(run)


class DeviceGreedyRows(DecoderRows):
    """:class:`parley.asr.decoding.batch.RowDecoder` that takes the best token, on a torch device.

    Rows of a call in which phrases are expected are decoded on the host, with the networks on the device.

    Args:
        network: on the device.
        max_symbols: tokens allowed at one frame.
        sizes: of its runs, in encoder frames.
        capture: records some steps of a run.
    """

    def __init__(self, network: Transducer, *, max_symbols: int, sizes: RunSizes, capture: Capture) -> None:
        super().__init__(
            TransducerDecoder(
                DeviceJoint(network),
                blank=network.blank,
                durations=network.durations,
                max_symbols=max_symbols,
            )
        )
        self._network = network
        self._greedy = GreedyDecoder(network, max_symbols=max_symbols)
        self._sizes = sizes
        self._errors = DeviceErrors("the decoder")
        shapes = sizes.shapes()
        largest = max(rows * frames for rows, frames in shapes)
        self._projected = torch.zeros(largest * network.joint_width, device=network.device)
        most = sizes.rows[-1]
        self._lengths = torch.zeros(most, dtype=torch.int64, device=network.device)
        self._at = torch.zeros_like(self._lengths)
        self._symbols = torch.zeros_like(self._lengths)
        self._failed = torch.zeros(most, dtype=torch.bool, device=network.device)
        self._states = DecoderPool.allocate(network, most)
        with torch.inference_mode():
            self._runs = {shape: self._capture(shape, capture) for shape in shapes}

    @torch.inference_mode()
    def decode(
        self,
        encoded: NDArray[np.float32],
        lengths: NDArray[np.int64],
        state: Rows,
        boosting: Sequence[PhraseAutomaton] | None,
    ) -> tuple[list[Reading], Rows]:
        """See :meth:`parley.asr.decoding.batch.RowDecoder.decode`."""
        if boosting:
            return super().decode(encoded, lengths, state, boosting)
        after = {name: values.copy() for name, values in state.items()}
        pieces: list[list[Tokens]] = [[Tokens.none()] for _ in lengths]
        longest = self._sizes.frames[-1]
        failed = np.zeros(len(lengths), np.bool_)
        for begin in range(0, max(encoded.shape[2], 1), longest):
            left = (lengths - begin).clip(0, longest)
            for members, rows, frames in self._sizes.runs(left):
                own = {name: values[members] for name, values in after.items()}
                piece = encoded[members, :, begin : begin + int(left[members].max())]
                found, new = self._run(piece.transpose(0, 2, 1), left[members], own, rows, frames)
                for row, tokens in zip(members, found, strict=True):
                    if isinstance(tokens, ParleyError):
                        failed[row] = True
                    else:
                        pieces[row].append(tokens.moved(begin))
                for name, values in new.items():
                    after[name][members] = values
        check_rows(~failed, SCORES, independent=True)
        return [Reading(Tokens.joined(own), []) for own in pieces], after

    def _run(
        self, encoded: NDArray[np.float32], lengths: NDArray[np.int64], state: Rows, rows: int, frames: int
    ) -> tuple[list[Tokens | InferenceError], dict[str, NDArray[Any]]]:
        """A run of ``encoded`` f32 ``[n, T, width]``, padded: tokens or an error of each row, and states."""
        given = len(lengths)
        replay, packed = self._runs[rows, frames]
        states = self._states
        try:
            put = _putter(given)
            frames_in = torch.from_numpy(np.ascontiguousarray(encoded)).to(self._network.device)
            self._projected_of(rows, frames)[:given, : encoded.shape[1]].copy_(
                self._network.project(frames_in)
            )
            self._lengths.zero_()
            put(self._lengths, lengths)
            self._symbols.zero_()
            self._failed.zero_()
            put(self._at, state["skip"])
            for name in ("targets", "hidden", "cell"):
                put(getattr(states, name), state[name])
            runs: list[NDArray[np.int32]] = []
            while not runs or is_left(runs[-1]):
                replay()
                runs.append(packed[:given].to("cpu", copy=True).numpy())
            after = {
                name: getattr(states, name)[:given].to("cpu", copy=True).numpy().astype(state[name].dtype)
                for name in ("targets", "hidden", "cell", "skip")
            }
        except RuntimeError as error:
            self._errors.failed(error)
            raise InferenceError(f"the decoder failed on {[rows, frames]}: {error}") from error
        self._errors.worked()
        return read_tokens(runs), after

    def _projected_of(self, rows: int, frames: int) -> Tensor:
        width = self._network.joint_width
        return self._projected[: rows * frames * width].view(rows, frames, width)

    def _capture(self, shape: tuple[int, int], capture: Capture) -> tuple[Callable[[], object], Tensor]:
        rows, frames = shape
        states = self._states
        progress = Progress(
            self._projected_of(rows, frames),
            self._lengths[:rows],
            self._at[:rows],
            self._symbols[:rows],
            self._failed[:rows],
            DecoderPool(states.targets[:rows], states.hidden[:rows], states.cell[:rows], states.skip[:rows]),
        )

        def run() -> Tensor:
            after, packed = self._greedy.run(progress, _STEPS)
            progress.store(after)
            return packed

        return capture(run)


def _putter(rows: int) -> Callable[[Tensor, NDArray[Any]], None]:
    """Copies values to the first rows of a tensor."""

    def put(memory: Tensor, values: NDArray[Any]) -> None:
        memory[:rows].copy_(torch.from_numpy(np.ascontiguousarray(values)))

    return put
