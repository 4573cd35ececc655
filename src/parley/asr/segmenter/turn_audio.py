"""The utterances of a turn that is not over, read as one.

A recogniser that hears a piece of a sentence by itself lacks what its words depend on: "ten minutes" alone
may be anything. So the pieces are put together again, with no more than a breath of the pauses between
them, and the last one is read in the light of those before it, and they in its light.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley.asr.decoding.words import text_of
from parley.asr.segmenter.segmentation import PER_MS
from parley.protocol import Alternative, Word

_AROUND_MS = 50
"""What is left of a pause on each side. The longer it is, the less do words depend on those before it."""


@dataclass(frozen=True)
class TurnUtterance:
    """One utterance. Times are samples of the stream."""

    utterance: int
    start: int
    """First sample of its audio, which begins before the onset."""
    onset: int
    end: int
    """Last sample of its speech."""
    content: NDArray[Any]
    """``[..., n]``: a column for every ``unit`` samples from ``start`` on."""


@dataclass(frozen=True)
class JoinedTurn:
    """The last utterance together with those before it."""

    first: int
    """Number of the first utterance."""
    content: NDArray[Any]
    """``[..., n]``, of the same unit as the pieces."""
    begins_ms: tuple[int, ...]
    """Where in it each piece begins, the first one at 0."""
    stream_ms: tuple[int, ...]
    """Where in the stream that is."""

    def split(self, words: Sequence[Word]) -> tuple[list[Word], list[Word]]:
        """The words before the last utterance and those of it, with times of the stream."""
        sides: tuple[list[Word], list[Word]] = ([], [])
        for word in words:
            middle = (word.start_ms + word.end_ms) // 2
            piece = max((at for at, begin in enumerate(self.begins_ms) if begin <= middle), default=0)
            later = self.stream_ms[piece] - self.begins_ms[piece]
            moved = msgspec.structs.replace(word, start_ms=word.start_ms + later, end_ms=word.end_ms + later)
            sides[piece == len(self.begins_ms) - 1].append(moved)
        return sides


def rest_of(alternatives: Sequence[Alternative], before: Sequence[Word]) -> list[Alternative]:
    """The readings that agree about what was said before, without it."""
    beginning = f"{text_of(before)} ".lstrip()
    return [
        msgspec.structs.replace(own, text=f"{own.text} "[len(beginning) :].strip())
        for own in alternatives
        if f"{own.text} ".startswith(beginning)
    ]


def split_text(text: str, before: Sequence[str]) -> list[str]:
    """Part a text that was read together, without times of its words.

    Returns:
        What each says now: those before the last one what is most like ``before``, the last one the rest.
    """
    words = text.split()
    heard = [_plain(word) for word in words]
    # Words to change between the first utterances and each beginning of the text (Levenshtein distance).
    distances = list(range(len(heard) + 1))
    rows: list[list[int]] = []
    for count, word in enumerate((word for own in before for word in own.split()), 1):
        row = [count]
        for end, other in enumerate(heard, 1):
            row.append(
                min(distances[end] + 1, row[end - 1] + 1, distances[end - 1] + (_plain(word) != other))
            )
        distances = row
        rows.append(row)
    ends = [len(words)]
    length = len(rows)
    for own in reversed(before):
        row = rows[length - 1] if length else list(range(len(heard) + 1))
        # Of equally good ends the last one: a word is rather written otherwise now than missing.
        ends.append(min(range(ends[-1], -1, -1), key=row.__getitem__))
        length -= len(own.split())
    starts = [0, *ends[:0:-1]]
    return [" ".join(words[start:end]) for start, end in zip(starts, reversed(ends), strict=True)]


def _plain(word: str) -> str:
    return "".join(character for character in word.lower() if character.isalnum())


@dataclass(frozen=True)
class TurnAudio:
    """The utterances of a turn so far. It is never changed, so that streams can be forked."""

    limit_ms: int
    """Longest content; older utterances are dropped. 0: utterances are not joined."""
    unit: int = 1
    """Samples of the stream in a column of content."""
    pieces: tuple[TurnUtterance, ...] = ()

    def closed(self) -> TurnAudio:
        """The state after the turn: nothing that follows is joined to it."""
        return TurnAudio(self.limit_ms, self.unit)

    def with_piece(self, piece: TurnUtterance) -> TurnAudio:
        """The state with one more utterance."""
        pieces = (*self.pieces, piece)
        while pieces and self._length_ms(pieces) > self.limit_ms:
            pieces = pieces[1:]
        return TurnAudio(self.limit_ms, self.unit, pieces)

    def without(self, utterance: int) -> TurnAudio:
        """The state without an utterance that has no words, if the turn began with it."""
        if self.pieces and self.pieces[0].utterance == utterance:
            return TurnAudio(self.limit_ms, self.unit, self.pieces[1:])
        return self

    def joined(self) -> JoinedTurn | None:
        """The last utterance together with those before it; None: there are none before it."""
        if len(self.pieces) < 2:
            return None
        spans = self._spans(self.pieces)
        columns = [
            piece.content[..., (begin - piece.start) // self.unit : -(-(end - piece.start) // self.unit)]
            for piece, (begin, end) in zip(self.pieces, spans, strict=True)
        ]
        lengths = np.cumsum([0, *(part.shape[-1] for part in columns[:-1])])
        return JoinedTurn(
            self.pieces[0].utterance,
            np.concatenate(columns, axis=-1),
            tuple((lengths * self.unit // PER_MS).tolist()),
            tuple(begin // PER_MS for begin, _ in spans),
        )

    def _spans(self, pieces: Sequence[TurnUtterance]) -> list[tuple[int, int]]:
        """What is taken of each piece: samples of the stream."""
        around = _AROUND_MS * PER_MS
        spans: list[tuple[int, int]] = []
        for number, piece in enumerate(pieces):
            begin, end = piece.start, piece.start + piece.content.shape[-1] * self.unit
            if number:
                begin = max(begin, min(piece.onset - around, end))
            if number < len(pieces) - 1:
                end = min(end, max(piece.end + around, begin))
            spans.append((begin, end))
        return spans

    def _length_ms(self, pieces: Sequence[TurnUtterance]) -> int:
        return sum(end - begin for begin, end in self._spans(pieces)) // PER_MS
