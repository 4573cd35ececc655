"""Parakeet as a reader of recordings: stretches to words with times, several in one call of each network."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from parley.asr.checkpoint import Checkpoint
from parley.asr.decoding.boosting import compile_phrases
from parley.asr.decoding.words import alternatives_of, confidence_of, text_of, words_of
from parley.asr.features import LogMel
from parley.asr.parakeet.networks import DecodedPiece, pad_features
from parley.asr.parakeet.pipeline import AcousticModels
from parley.asr.reader import Reader, ReadOptions, RecognizedText, RunLimits, Stretch
from parley.asr.segmenter.segmentation import FULL_SCALE
from parley.asr.service import milliseconds
from parley.runtime.onnx import Stop, StoppedError


class ParakeetReader(Reader):
    """Reads with encoder and decoder of a checkpoint."""

    def __init__(
        self,
        models: AcousticModels,
        checkpoint: Checkpoint,
        *,
        languages: Sequence[str],
        longest_ms: int,
        limits: RunLimits,
    ) -> None:
        self.languages = tuple(languages)
        self.longest_ms = longest_ms
        self.spelled = checkpoint.vocabulary
        self.run_limits = limits
        self._models = models
        self._checkpoint = checkpoint
        self._mel = LogMel(checkpoint.config)

    def options(self, language: str, phrases: list[str], weight: float) -> ReadOptions:
        """See :class:`Reader`; phrases are favoured as they are written."""
        return ReadOptions(language, compile_phrases(phrases, weight, self.spelled))

    def read_together(self, stretches: Sequence[Stretch], stop: Stop) -> list[RecognizedText]:
        """See :class:`Reader`; calls that have begun are not stopped."""
        if stop.requested:
            raise StoppedError
        samples = [own.audio.astype(np.float32) / FULL_SCALE for own in stretches]
        features, lengths = pad_features([self._mel.normalized(self._mel.offline(own)) for own in samples])
        began = time.perf_counter()
        encoded, encoded_lengths = self._models.encode(features, lengths)
        between = time.perf_counter()
        boosting = [own.options.boosting for own in stretches]
        decoded = self._models.decode(encoded, encoded_lengths, boosting)
        encoder_ms, decoder_ms = milliseconds(between - began), milliseconds(time.perf_counter() - between)
        return [
            self._text(piece, own.start_ms, encoder_ms, decoder_ms)
            for piece, own in zip(decoded, stretches, strict=True)
        ]

    def _text(
        self, piece: DecodedPiece, start_ms: int, encoder_ms: float, decoder_ms: float
    ) -> RecognizedText:
        words = words_of(piece.tokens, self._checkpoint, offset_ms=start_ms)
        readings = piece.alternatives
        return RecognizedText(
            text_of(words),
            confidence_of(words),
            encoder_ms,
            decoder_ms,
            words=tuple(words),
            alternatives=tuple(alternatives_of(readings, self._checkpoint, len(readings))),
        )
