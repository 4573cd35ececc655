"""Stretches of speech to texts by an attention decoder: one at a time, and judged whether they are speech."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from parley.asr.attention.model import AttentionModel
from parley.asr.pipeline.segmentation import FULL_SCALE, PER_MS
from parley.asr.segments.reader import Reader, RecognizedText, Stretch
from parley.errors import InferenceError
from parley.runtime.onnx import Stop

_SHIFT = 50 * PER_MS
"""Silence before a stretch that is read again, because the decoder did not end its text: where the encoder's
frames are cut elsewhere, it rarely loops again."""
_SURE = 0.75
"""Confidence from which the second text is taken. Of noise, decoders make loops too, and in their place "You"
and the like with up to 0.7."""
_log = logging.getLogger(__name__)


class AttentionReader(Reader):
    """Reads with a model of attention decoders.

    Args:
        model: reads.
        least_confidence: of a text, 0-1, below which there is none; None: the model's own.
    """

    def __init__(self, model: AttentionModel, *, least_confidence: float | None = None) -> None:
        self.model = model
        self.languages = tuple(model.prompt.languages)
        self.longest_ms = model.longest // PER_MS
        self.spelled = model.vocabulary.spelled
        self._limits = model.limits
        if least_confidence is not None:
            self._limits = replace(self._limits, least_confidence=least_confidence)

    def read_together(self, stretches: Sequence[Stretch], stop: Stop) -> list[RecognizedText]:
        """See :class:`Reader`; it takes one stretch."""
        (stretch,) = stretches
        samples = stretch.audio.astype(np.float32) / FULL_SCALE
        samples = np.pad(samples, (0, max(self.model.shortest - len(samples), 0)))
        read = self.model.read(samples, stretch.options, stop)
        if not np.isfinite(read.tokens.confidence):
            raise InferenceError("the decoder's scores are not finite")
        problem = self._limits.problem(read)
        encoder_ms, decoder_ms = read.encoder_ms, read.decoder_ms
        if not read.tokens.ended and len(samples) + _SHIFT <= self.model.longest:
            again = self.model.read(np.pad(samples, (_SHIFT, 0)), stretch.options, stop)
            encoder_ms, decoder_ms = encoder_ms + again.encoder_ms, decoder_ms + again.decoder_ms
            wanted = problem or again.tokens.ended
            if wanted and again.tokens.confidence >= _SURE and not self._limits.problem(again):
                read, problem = again, ""
        if problem:
            _log.debug("%d ms have no text: %s", len(stretch.audio) // PER_MS, problem)
            return [RecognizedText("", 0.0, encoder_ms, decoder_ms)]
        confidence = round(read.tokens.confidence, 4)
        return [RecognizedText(read.text, confidence, encoder_ms, decoder_ms, read.language)]
