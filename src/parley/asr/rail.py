"""One step of many streams with as few model calls as possible."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from parley.asr.messages import AsrReply
from parley.asr.stream import AsrStream, DecodeJob, Step
from parley.asr.transducer import Tokens
from parley.errors import ParleyError

T = TypeVar("T")


class AcousticModels(Protocol):
    """The three networks. Each failure is raised as a :class:`parley.errors.ParleyError`."""

    def detect(
        self,
        windows: NDArray[np.float32],
        counts: NDArray[np.int32],
        state: NDArray[np.float32],
        context: NDArray[np.float32],
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """See :meth:`parley.vad.silero.SileroVad.detect`."""
        ...

    def encode(
        self, features: NDArray[np.float32], lengths: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """See :meth:`parley.asr.networks.OnnxEncoder.encode`."""
        ...

    def decode(self, encoded: NDArray[np.float32], lengths: NDArray[np.int64]) -> list[Tokens]:
        """Decode whole stretches: f32 ``[B, D, T']`` with i64 ``[B]`` real frames."""
        ...


@dataclass(frozen=True)
class Chunk:
    """A piece of audio for one stream; a stream has at most one in a step."""

    stream: AsrStream
    audio: NDArray[np.int16]
    flush: bool = False


@dataclass(frozen=True)
class Heard:
    """What became of a chunk."""

    stream: AsrStream
    """The stream after the chunk; the one before it is unchanged."""
    reply: AsrReply


@dataclass
class _Work:
    """A chunk on its way through the step."""

    stream: AsrStream
    windows: NDArray[np.float32]
    probabilities: NDArray[np.float32]
    steps: list[Step] = field(default_factory=list)
    tokens: list[Tokens] = field(default_factory=list)
    error: ParleyError | None = None

    @property
    def jobs(self) -> list[DecodeJob]:
        return [step for step in self.steps if isinstance(step, DecodeJob)]


def step(
    chunks: Sequence[Chunk], models: AcousticModels, clock: Callable[[], float] = time.perf_counter
) -> list[Heard | ParleyError]:
    """Serve all chunks: one voice activity call, then one encoder and one decoder call if needed.

    A failed call fails the chunks that needed it, and only those. Their streams are as they were
    before, so the same chunk can be sent again.

    Args:
        chunks: at most one of each stream.
        models: the networks.
        clock: seconds, for the reply's timings.

    Returns:
        For each chunk what was heard, or why not.
    """
    work = []
    for chunk in chunks:
        stream = chunk.stream.fork()
        windows = stream.accept(chunk.audio, flush=chunk.flush)
        work.append(_Work(stream, windows, np.zeros(len(windows), np.float32)))
    vad_ms = _timed(clock, lambda: _detect(work, models))
    for item in work:
        if item.error is None:
            item.steps = item.stream.detected(item.probabilities)
    encoder_ms, decoder_ms = _recognize(work, models, clock)
    return [
        item.error
        or Heard(
            item.stream,
            AsrReply(
                events=item.stream.resolve(item.steps, item.tokens),
                speech_probability=round(float(item.probabilities.max(initial=0.0)), 4),
                stream_ms=item.stream.received // 16,
                vad_ms=vad_ms if len(item.windows) else 0.0,
                encoder_ms=encoder_ms if item.jobs else 0.0,
                decoder_ms=decoder_ms if item.jobs else 0.0,
                batch=len(chunks),
            ),
        )
        for item in work
    ]


def _detect(work: list[_Work], models: AcousticModels) -> None:
    needing = [item for item in work if len(item.windows)]
    if not needing:
        return
    counts = np.array([len(item.windows) for item in needing], np.int32)
    windows = np.zeros((len(needing), counts.max(), needing[0].windows.shape[1]), np.float32)
    for row, item in enumerate(needing):
        windows[row, : counts[row]] = item.windows
    state = np.stack([item.stream.vad_state for item in needing])
    context = np.stack([item.stream.vad_context for item in needing])
    try:
        probabilities, state, context = models.detect(windows, counts, state, context)
    except ParleyError as error:
        _fail(needing, error)
        return
    for row, item in enumerate(needing):
        item.probabilities = probabilities[row, : counts[row]]
        item.stream.vad_state = state[row]
        item.stream.vad_context = context[row]


def _recognize(work: list[_Work], models: AcousticModels, clock: Callable[[], float]) -> tuple[float, float]:
    """Run the encoder and decoder on all jobs; return their times in milliseconds."""
    needing = [item for item in work if item.jobs]
    jobs = [job for item in needing for job in item.jobs]
    if not jobs:
        return 0.0, 0.0
    # A stretch without a single frame is decoded as one frame of silence.
    lengths = np.array([max(job.features.shape[1], 1) for job in jobs], np.int64)
    features = np.zeros((len(jobs), jobs[0].features.shape[0], lengths.max()), np.float32)
    for row, job in enumerate(jobs):
        features[row, :, : job.features.shape[1]] = job.features
    began = clock()
    try:
        encoded, encoded_lengths = models.encode(features, lengths)
        between = clock()
        tokens = iter(models.decode(encoded, encoded_lengths))
    except ParleyError as error:
        _fail(needing, error)
        return 0.0, 0.0
    ended = clock()
    for item in needing:
        item.tokens = [next(tokens) for _ in item.jobs]
    return _milliseconds(between - began), _milliseconds(ended - between)


def _fail(work: list[_Work], error: ParleyError) -> None:
    for item in work:
        item.error = error


def _timed(clock: Callable[[], float], run: Callable[[], None]) -> float:
    began = clock()
    run()
    return _milliseconds(clock() - began)


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)
