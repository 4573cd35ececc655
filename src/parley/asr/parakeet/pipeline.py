"""Recognition that decodes every utterance as a whole: many streams with as few model calls as possible."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from parley.asr.checkpoint import Checkpoint
from parley.asr.decoding.boosting import PhraseAutomaton
from parley.asr.features import LogMel
from parley.asr.messages import AsrOptions
from parley.asr.parakeet.networks import DecodedPiece, pad_features
from parley.asr.parakeet.stream import DecodeJob, OfflineStream, Step, StreamLimits
from parley.asr.segmenter.segmentation import Detector
from parley.asr.service import ChunkRequest, ChunkResult, PendingChunk, milliseconds, run_vad
from parley.errors import ParleyError


class AcousticModels(Detector, Protocol):
    """The three networks. Each failure is raised as a :class:`parley.errors.ParleyError`."""

    def encode(
        self, features: NDArray[np.float32], lengths: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """See :meth:`parley.asr.parakeet.networks.OnnxEncoder.encode`."""
        ...

    def decode(
        self,
        encoded: NDArray[np.float32],
        lengths: NDArray[np.int64],
        boosting: Sequence[PhraseAutomaton] | None = None,
    ) -> list[DecodedPiece]:
        """Decode whole stretches.

        Args:
            encoded: f32 ``[B, D, T']``.
            lengths: i64 ``[B]``, real frames of each row.
            boosting: each row's phrases; None: no row has any.
        """
        ...


@dataclass
class _Utterances:
    """The utterances of a chunk."""

    work: PendingChunk[OfflineStream]
    steps: list[Step] = field(default_factory=list)
    decoded: list[DecodedPiece] = field(default_factory=list)

    @property
    def jobs(self) -> list[DecodeJob]:
        return [step for step in self.steps if isinstance(step, DecodeJob)]


class OfflinePipeline:
    """:class:`parley.asr.service.RecognizerPipeline` of ``parakeet_tdt``. Streams own only memory."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        models: AcousticModels,
        limits: StreamLimits,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Serve ``checkpoint``, whose vocabulary and front end apply; ``clock``: seconds, for timings."""
        self._checkpoint = checkpoint
        self._models = models
        self._limits = limits
        self._clock = clock
        self._mel = LogMel(checkpoint.config)

    def new_stream(self, options: AsrOptions) -> OfflineStream:
        """Begin a stream.

        Raises:
            InvalidMessageError: the options are out of range.
        """
        return OfflineStream(self._checkpoint, self._mel, options, self._limits)

    def release(self, stream: OfflineStream) -> None:
        """Do nothing: a stream holds only memory."""

    def step(
        self, chunks: Sequence[ChunkRequest[OfflineStream]]
    ) -> list[ChunkResult[OfflineStream] | ParleyError]:
        """Serve all chunks: one voice activity call, then one encoder and one decoder call if needed.

        A failed call fails the chunks that needed it, and only those. Their streams are as they were
        before, so the same chunk can be sent again.
        """
        work, vad_ms = run_vad(chunks, self._models, self._clock)
        items = [_Utterances(item) for item in work]
        for item in items:
            if item.work.error is None:
                if item.work.chunk.turn_over:
                    item.work.stream.turn_over()
                item.steps = item.work.stream.detected(item.work.probabilities)
        encoder_ms, decoder_ms = self._recognize([item for item in items if item.jobs])
        return [
            item.work.error
            or ChunkResult(
                item.work.stream,
                item.work.reply(
                    item.work.stream.resolve(item.steps, item.decoded),
                    vad_ms=vad_ms,
                    encoder_ms=encoder_ms if item.jobs else 0.0,
                    decoder_ms=decoder_ms if item.jobs else 0.0,
                    batch=len(chunks),
                ),
            )
            for item in items
        ]

    def _recognize(self, items: Sequence[_Utterances]) -> tuple[float, float]:
        """Run the encoder and decoder on all jobs; return their times in milliseconds."""
        if not items:
            return 0.0, 0.0
        features, lengths = pad_features([job.features for item in items for job in item.jobs])
        began = self._clock()
        try:
            encoded, encoded_lengths = self._models.encode(features, lengths)
            between = self._clock()
            boosting = [item.work.stream.boosting for item in items for _ in item.jobs]
            decoded = iter(self._models.decode(encoded, encoded_lengths, boosting))
        except ParleyError as error:
            for item in items:
                item.work.error = error
            return 0.0, 0.0
        ended = self._clock()
        for item in items:
            item.decoded = [next(decoded) for _ in item.jobs]
        return milliseconds(between - began), milliseconds(ended - between)
