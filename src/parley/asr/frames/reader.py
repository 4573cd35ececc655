"""Stretches of speech to words with times, several of them in one run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from parley.asr.decoding.vocabulary import WORD_MARK, text_of_pieces
from parley.asr.decoding.words import confidence_of, join_words, text_of
from parley.asr.frames.model import LONGEST, SHORTEST, FrameModel, RowTokens
from parley.asr.pipeline.segmentation import FULL_SCALE, PER_MS
from parley.asr.segments.reader import Reader, RecognizedText, RunLimits, Stretch
from parley.runtime.onnx import Stop, StoppedError

_MARK = WORD_MARK.encode()
# Chinese characters, kana and the punctuation between them; Korean is written with spaces.
_WITHOUT_SPACES = ((0x3000, 0x30FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0xFF01, 0xFF60))


class FrameReader(Reader):
    """Reads with a model of networks that score frames.

    Args:
        model: reads.
        limits: which stretches it reads together.
        least_confidence: of a text, 0-1, below which there is none.
    """

    def __init__(self, model: FrameModel, limits: RunLimits, *, least_confidence: float = 0.0) -> None:
        self._model = model
        self._spelled = model.spelling.spelled
        self._least_confidence = least_confidence
        stretches = min(limits.stretches, model.network.most_rows)
        self.run_limits = RunLimits(stretches, limits.samples, limits.ratio)

    @property
    def languages(self) -> tuple[str, ...]:
        """See :class:`Reader`."""
        return self._model.languages

    @property
    def longest_ms(self) -> int:
        """See :class:`Reader`."""
        return LONGEST // PER_MS

    @property
    def spelled(self) -> tuple[str, ...]:
        """See :class:`Reader`."""
        return self._spelled

    def read_together(self, stretches: Sequence[Stretch], stop: Stop) -> list[RecognizedText]:
        """See :class:`Reader`."""
        features = []
        for stretch in stretches:
            if stop.requested:
                raise StoppedError
            samples = stretch.audio.astype(np.float32) / FULL_SCALE
            samples = np.pad(samples, (0, max(SHORTEST - len(samples), 0)))
            features.append(self._model.features(samples))
        found = self._model.network.run(features, [stretch.options for stretch in stretches], stop)
        return [
            self._text(row, stretch, found.encoder_ms, found.decoder_ms)
            for row, stretch in zip(found.rows, stretches, strict=True)
        ]

    def _text(self, row: RowTokens, stretch: Stretch, encoder_ms: float, decoder_ms: float) -> RecognizedText:
        pieces = without_spaces(self._model.spelling.pieces_of(row.tokens.ids.tolist()))
        words = (
            join_words(row.tokens, pieces, frame_ms=self._model.frame_ms, offset_ms=stretch.start_ms)
            if row.timed
            else []
        )
        text = text_of(words) if row.timed else text_of_pieces(pieces)
        certain = [
            confidence
            for piece, confidence in zip(pieces, row.tokens.confidences.tolist(), strict=True)
            if piece is not None
        ]
        confidence = confidence_of(words) if words else round(float(np.mean(certain or [0.0])), 4)
        if not any(map(str.isalnum, text)) or confidence < self._least_confidence:
            return RecognizedText("", 0.0, encoder_ms, decoder_ms)
        return RecognizedText(text, confidence, encoder_ms, decoder_ms, row.language, tuple(words))


def without_spaces(pieces: Sequence[bytes | None]) -> list[bytes | None]:
    """The pieces without the marks of words between characters that are written without spaces."""
    texts = [(piece or b"").removeprefix(_MARK).decode(errors="ignore") for piece in pieces]
    result = list(pieces)
    before = ""
    for place, (piece, text) in enumerate(zip(pieces, texts, strict=True)):
        following = next((later[0] for later in texts[place:] if later), "")
        if piece is not None and piece.startswith(_MARK) and _joins(before) and _joins(following):
            result[place] = piece.removeprefix(_MARK) or None
        before = text[-1:] or before
    return result


def _joins(character: str) -> bool:
    return character != "" and any(first <= ord(character) <= last for first, last in _WITHOUT_SPACES)
