"""The networks of a streaming recogniser on a torch device, with all that they remember in rows of one pool.

A step of some streams is one sequence of operations: audio to features, the encoder with its caches, and
the first steps of greedy decoding. Only audio goes to the device, and only tokens come back. Its sizes are
the frames of a chunk and a number of rows; for each of them it is captured once, when the model is loaded,
and repeated from then on. A step of more rows than the largest number is made of several.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parley.asr.decoding.greedy import Tokens
from parley.asr.features import SILENCE, LogMel
from parley.errors import InferenceError, ParleyError
from parley.runtime.batching import round_up
from parley.runtime.process_end import DeviceErrors
from parley_torch.asr.fastconformer import SUBSAMPLING, EncoderPool, FastConformer
from parley_torch.asr.features import DeviceLogMel
from parley_torch.asr.prompt import LanguagePrompt
from parley_torch.asr.transducer import (
    DecoderPool,
    GreedyDecoder,
    Progress,
    Transducer,
    is_left,
    read_tokens,
)
from parley_torch.runtime.cuda_graphs import Capture

ROW_SIZES = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of rows to which steps are padded."""
LEFT = 70
"""Encoder frames of the past that attention sees, if an export does not say another number."""
_MOST_STEPS = 16
_NUMBERS = 5
"""Of a row of a step: real samples and frames, source, target, and language prompt."""
_SOURCES, _TARGETS = 2, 3


def decoding_steps(frames: int) -> int:
    """Steps of greedy decoding in one sequence of operations: so many that chunks rarely need another."""
    return min(frames + 3, _MOST_STEPS)


@dataclass(frozen=True)
class StreamChunks:
    """The next chunk of some streams."""

    audio: NDArray[np.int16]
    """``[B, n]``; see :meth:`parley.asr.features.BatchedLogMel.stretch`."""
    real_samples: NDArray[np.int64]
    """``[B]``."""
    real_frames: NDArray[np.int64]
    """``[B]``."""
    sources: NDArray[np.int64]
    """``[B]``: rows of the pool that are read."""
    targets: NDArray[np.int64]
    """``[B]``: rows that are written, each once."""
    prompts: NDArray[np.int64]
    """``[B]``: indices of language prompts; of no meaning to a model without prompts."""

    def part(self, rows: slice) -> StreamChunks:
        """Some of the streams."""
        return StreamChunks(*(getattr(self, field.name)[rows] for field in fields(self)))


@dataclass(frozen=True)
class ChunkOutput:
    """What became of one stream's chunk."""

    tokens: Tokens
    """Empty if the device does not decode."""
    encoded: NDArray[np.float32]
    """``[width, T]``; no frames if they were not asked for."""


@dataclass(frozen=True)
class StreamingNetworks:
    """The networks, on a device, and the constants of the front end."""

    encoder: FastConformer
    transducer: Transducer
    mel: LogMel
    max_symbols: int
    """Tokens allowed at one frame."""
    prompt: LanguagePrompt | None = None
    """Makes the encoder's frames those of a language."""


@dataclass(frozen=True)
class _Graph:
    begin: Callable[[], object]
    """Encodes, and does the first steps of decoding."""
    begun: Tensor
    """i32 ``[B, n]``: what they found, and at last whether the encoder's output is not finite."""
    go_on: Callable[[], object]
    """Does as many steps more."""
    gone_on: Tensor


class StreamingDevice:
    """The pool, and the graphs that work on it. Used by one thread at a time."""

    def __init__(
        self,
        networks: StreamingNetworks,
        *,
        chunks: Sequence[int],
        rows: int,
        capture: Capture,
        left: int = LEFT,
        sizes: Sequence[int] = ROW_SIZES,
        decodes: bool = True,
    ) -> None:
        """Allocate, and capture every size, the largest first.

        Args:
            networks: what runs.
            chunks: feature frames of the chunks that streams may have.
            rows: of the pool. There are two more: one that is as before the first chunk, and one that padding
                writes to.
            capture: records a sequence of operations.
            left: encoder frames of the past that attention sees.
            sizes: rising numbers of rows to which steps are padded.
            decodes: whether tokens are found on the device.
        """
        self._networks = networks
        self._decodes = decodes
        self._sizes = tuple(sizes)
        self._left = left
        self.initial_row, self._spare_row = rows, rows + 1
        encoder, device = networks.encoder, networks.transducer.device
        self._mel = DeviceLogMel(networks.mel, device)
        self._decoder = GreedyDecoder(networks.transducer, max_symbols=networks.max_symbols)
        self._errors = DeviceErrors("the streaming encoder")
        self._pool = EncoderPool.allocate(
            encoder.sizes,
            rows=rows + 2,
            left=left,
            silence=float(SILENCE),
            dtype=encoder.dtype,
            device=device,
        )
        self._states = DecoderPool.allocate(networks.transducer, rows + 2)
        most, longest = self._sizes[-1], max(chunks)
        # The inputs of all graphs share memory, and so do their encoded frames: only one runs at a time.
        self._audio = torch.zeros(most * networks.mel.samples(longest), dtype=torch.int16, device=device)
        self._numbers = torch.zeros((_NUMBERS, most), dtype=torch.int64, device=device)
        self._encoded = torch.zeros(most * (longest // SUBSAMPLING) * encoder.sizes.width, device=device)
        with torch.inference_mode():
            self._positions = {chunk: encoder.positions(left, chunk // SUBSAMPLING) for chunk in chunks}
            self._graphs = {
                (chunk, size): self._capture(chunk, size, capture)
                for chunk in sorted(chunks, reverse=True)
                for size in reversed(self._sizes)
            }

    def run(
        self, chunk: int, streams: StreamChunks, *, encoded: bool = False
    ) -> list[ChunkOutput | ParleyError]:
        """Recognise a chunk of ``chunk`` feature frames of each of some streams.

        Args:
            chunk: one of those that were given.
            streams: whose rows are written, also where it fails.
            encoded: whether the encoder's frames are wanted.

        Returns:
            An output or an error for each stream; values that are not finite are an error of their own row.
        """
        most = self._sizes[-1]
        return [
            output
            for first in range(0, len(streams.audio), most)
            for output in self._run(chunk, streams.part(slice(first, first + most)), encoded=encoded)
        ]

    def frames(self, chunk: int) -> int:
        """Encoder frames of a chunk."""
        return chunk // SUBSAMPLING

    @torch.inference_mode()
    def _run(self, chunk: int, streams: StreamChunks, *, encoded: bool) -> list[ChunkOutput | ParleyError]:
        rows = len(streams.audio)
        size = round_up(rows, self._sizes)
        graph = self._graphs[chunk, size]
        try:
            self._write(streams, size)
            graph.begin()
            found = _to_host(graph.begun[:rows])
            runs, failed = [found[:, :-1]], found[:, -1]
            while self._decodes and is_left(runs[-1]):
                graph.go_on()
                runs.append(_to_host(graph.gone_on[:rows]))
            frames = _to_host(self._frames_of(chunk, size)[:rows]) if encoded else None
        except RuntimeError as error:
            self._errors.failed(error)
            return [
                InferenceError(f"the streaming encoder failed on {rows} rows: {error}") for _ in range(rows)
            ]
        self._errors.worked()
        none = np.zeros((0, self._networks.encoder.sizes.width), np.float32)
        tokens = read_tokens(runs) if self._decodes else [Tokens.none()] * rows
        return [
            InferenceError("the streaming encoder's output is not finite")
            if failed[row]
            else own
            if isinstance(own, ParleyError)
            else ChunkOutput(own, (none if frames is None else frames[row]).T)
            for row, own in enumerate(tokens)
        ]

    def _write(self, streams: StreamChunks, size: int) -> None:
        """Copy the inputs to the device; padding reads the row before the first chunk, and silence."""
        rows = len(streams.audio)
        numbers = np.zeros((_NUMBERS, size), np.int64)
        numbers[_SOURCES, rows:], numbers[_TARGETS, rows:] = self.initial_row, self._spare_row
        numbers[:, :rows] = (
            streams.real_samples,
            streams.real_frames,
            streams.sources,
            streams.targets,
            streams.prompts,
        )
        self._numbers[:, :size].copy_(torch.from_numpy(numbers))
        audio = torch.from_numpy(np.ascontiguousarray(streams.audio))
        self._audio[: audio.numel()].copy_(audio.reshape(-1))

    def _frames_of(self, chunk: int, size: int) -> Tensor:
        shape = size, chunk // SUBSAMPLING, self._networks.encoder.sizes.width
        return self._encoded[: size * shape[1] * shape[2]].view(shape)

    def _capture(self, chunk: int, size: int, capture: Capture) -> _Graph:
        networks, frames = self._networks, chunk // SUBSAMPLING
        positions = self._positions[chunk]
        samples = networks.mel.samples(chunk)
        audio = self._audio[: size * samples].view(size, samples)
        real_samples, real_frames, sources, targets, prompts = self._numbers[:, :size]
        encoded = self._frames_of(chunk, size)
        steps = decoding_steps(frames)
        device = networks.transducer.device
        progress = Progress(
            projected=torch.zeros((size, frames, networks.transducer.joint_width), device=device),
            lengths=torch.full((size,), frames, device=device),
            at=torch.zeros(size, dtype=torch.int64, device=device),
            symbols=torch.zeros(size, dtype=torch.int64, device=device),
            failed=torch.zeros(size, dtype=torch.bool, device=device),
            state=DecoderPool.allocate(networks.transducer, size),
        )

        def decode(current: Progress) -> Tensor:
            after, packed = self._decoder.run(current, steps)
            progress.store(after)
            self._states.scatter(targets, after.state)
            return packed

        def begin() -> Tensor:
            features = self._mel(audio, real_samples, real_frames)
            found = networks.encoder.step(features, self._pool, sources, targets, positions).float()
            if networks.prompt is not None:
                found = networks.prompt(found, prompts)
            encoded.copy_(found)
            failed = ~found.isfinite().flatten(1).all(1)
            if not self._decodes:
                return failed.int()[:, None]
            state = self._states.gather(sources)
            packed = decode(
                Progress(
                    projected=networks.transducer.project(found),
                    lengths=progress.lengths,
                    at=state.skip,
                    symbols=torch.zeros_like(state.skip),
                    failed=failed,
                    state=state,
                )
            )
            return torch.cat([packed, failed.int()[:, None]], dim=1)

        repeat, begun = capture(begin)
        if not self._decodes:
            return _Graph(repeat, begun, repeat, begun)
        return _Graph(repeat, begun, *capture(lambda: decode(progress)))


def _to_host(values: Tensor) -> NDArray[Any]:
    """A copy, which is safe from the next run; waits for the device."""
    return values.to("cpu", copy=True).numpy()
