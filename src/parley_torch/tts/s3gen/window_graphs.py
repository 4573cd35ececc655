"""The vocoder and its pitch predictor as CUDA graphs, one for each size of a batch of windows.

As :mod:`parley_torch.tts.s3gen.graphs` does it for the flow. Windows are padded to a few numbers of frames.
Those of whole utterances cannot be: a short one has a graph of its own length, alone in its batch; a longer
one is made as two windows. So every window up to the largest size has a graph; what is longer runs operation
by operation and is counted.

The inputs of all graphs share memory: only one graph runs at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from parley.runtime.batching import round_up
from parley_torch.runtime.cuda_graphs import BatchGraphs, Capture, SharedMemory
from parley_torch.tts.s3gen.state import FRAMES_PER_TOKEN
from parley_torch.tts.s3gen.windows import AudioWindow, group_windows, run_windows


@dataclass(frozen=True)
class WindowSizes:
    """Sizes of a network's batches."""

    frames: tuple[int, ...]
    """Rising, to which windows are padded."""
    rows: tuple[int, ...]
    """Rising, to which batches are padded."""
    context: int
    """Frames beyond its own on which a result depends, on either side."""

    @property
    def wholes(self) -> range:
        """Frames of whole utterances that are too short for two windows; always full tokens."""
        return range(FRAMES_PER_TOKEN, 2 * self.context + 2, FRAMES_PER_TOKEN)

    def batches(self) -> list[tuple[int, int]]:
        """Rows and frames of all batches, the largest first."""
        padded = {(rows, frames) for rows in self.rows for frames in self.frames}
        alone = {(1, frames) for frames in self.wholes}
        return sorted(padded | alone, key=lambda size: (size[0] * size[1], size), reverse=True)


@dataclass(frozen=True)
class VocoderSizes:
    """Sizes of the batches of both networks."""

    pitch: WindowSizes
    waveform: WindowSizes


@dataclass(frozen=True)
class _Graph:
    replay: Callable[[], object]
    inputs: Sequence[Tensor]
    """``[rows, ..., k frames]``."""
    result: Tensor


class WindowGraphs(BatchGraphs[tuple[int, int], _Graph]):
    """Runs a network, by rows and frames of a batch. Not to be used from two threads at once.

    All graphs are captured by the constructor.

    Args:
        network: takes tensors ``[B, ..., k n]`` for n frames, and returns one.
        frame: its inputs for one frame, without the dimension of rows.
        sizes: of its batches.
        capture: makes a graph.
        memory: of the inputs.
    """

    def __init__(
        self,
        network: Callable[..., Tensor],
        frame: Sequence[Tensor],
        sizes: WindowSizes,
        capture: Capture,
        memory: SharedMemory,
    ) -> None:
        super().__init__()
        self._network = network
        self.sizes = sizes
        """Of its batches."""
        for rows, frames in sizes.batches():
            inputs = [
                memory.place(
                    f"window {index}", one.new_zeros((rows, *one.shape[:-1], frames * one.shape[-1]))
                )
                for index, one in enumerate(frame)
            ]
            replay, result = capture(partial(network, *inputs))
            self._graphs[rows, frames] = _Graph(replay, inputs, result)

    def run(self, windows: Sequence[AudioWindow]) -> list[Tensor]:
        """The network's results for windows, in their order; see :func:`run_windows`."""
        context = self.sizes.context
        parts = [
            window.halves(context) if window.whole and window.frames > self.sizes.wholes[-1] else (window,)
            for window in windows
        ]
        made = iter(self._run_parts([part for own in parts for part in own]))
        results = [[next(made) for _ in own] for own in parts]
        return [
            own[0] if len(own) == 1 else window.joined(own, context)
            for window, own in zip(windows, results, strict=True)
        ]

    def _run_parts(self, windows: Sequence[AudioWindow]) -> list[Tensor]:
        inside = [index for index, window in enumerate(windows) if not window.whole]
        grouped = group_windows(
            [windows[index] for index in inside], self.sizes.frames, max_rows=self.sizes.rows[-1]
        )
        groups = [[inside[member] for member in members] for members in grouped]
        groups += [[index] for index, window in enumerate(windows) if window.whole]
        results: dict[int, Tensor] = {}
        for members in groups:
            made = self._run_batch([windows[index] for index in members])
            results |= zip(members, made, strict=True)
        return [results[index] for index in range(len(windows))]

    def _run_batch(self, windows: Sequence[AudioWindow]) -> list[Tensor]:
        longest = max(window.frames for window in windows)
        frames = longest if windows[0].whole else round_up(longest, self.sizes.frames)
        size = round_up(len(windows), self.sizes.rows), frames
        graph = self._find(size)
        if graph is None:
            return run_windows(self._network, windows)
        for tensor in graph.inputs:
            tensor.zero_()
        for row, window in enumerate(windows):
            window.write([tensor[row] for tensor in graph.inputs])
        graph.replay()
        output = graph.result[: len(windows)].clone()
        return [window.cut(result, frames) for window, result in zip(windows, output, strict=True)]


@dataclass(frozen=True)
class VocoderGraphs:
    """Both networks."""

    pitch: WindowGraphs
    waveform: WindowGraphs

    def __len__(self) -> int:
        return len(self.pitch) + len(self.waveform)

    @property
    def without_graph(self) -> int:
        """Batches whose size had none."""
        return self.pitch.without_graph + self.waveform.without_graph
