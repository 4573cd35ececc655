"""Stretches of speech to texts by an attention decoder: one at a time, and judged whether they are speech."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from parley.asr.attention.model import AttentionModel, TextLimits
from parley.asr.pipeline.segmentation import FULL_SCALE, PER_MS
from parley.asr.segments.reader import Reader, RecognizedText, Stretch
from parley.errors import InferenceError
from parley.runtime.onnx import Stop

_log = logging.getLogger(__name__)


class AttentionReader(Reader):
    """Reads with a model of attention decoders.

    Args:
        model: reads.
        limits: which texts are taken for speech; None: the model's own.
    """

    def __init__(self, model: AttentionModel, limits: TextLimits | None = None) -> None:
        self._model = model
        self._spelled = model.vocabulary.spelled
        self._limits = limits or model.limits

    @property
    def languages(self) -> tuple[str, ...]:
        """See :class:`Reader`."""
        return tuple(self._model.prompt.languages)

    @property
    def longest_ms(self) -> int:
        """See :class:`Reader`."""
        return self._model.longest // PER_MS

    @property
    def spelled(self) -> tuple[str, ...]:
        """See :class:`Reader`."""
        return self._spelled

    def read_together(self, stretches: Sequence[Stretch], stop: Stop) -> list[RecognizedText]:
        """See :class:`Reader`; it takes one stretch."""
        (stretch,) = stretches
        samples = stretch.audio.astype(np.float32) / FULL_SCALE
        samples = np.pad(samples, (0, max(self._model.shortest - len(samples), 0)))
        read = self._model.read(samples, stretch.options, stop)
        confidence = read.tokens.confidence
        if not np.isfinite(confidence):
            raise InferenceError("the decoder's scores are not finite")
        if problem := self._limits.problem(read):
            _log.debug("%d ms have no text: %s", len(stretch.audio) // PER_MS, problem)
            return [RecognizedText("", 0.0, read.encoder_ms, read.decoder_ms)]
        return [
            RecognizedText(read.text, round(confidence, 4), read.encoder_ms, read.decoder_ms, read.language)
        ]
