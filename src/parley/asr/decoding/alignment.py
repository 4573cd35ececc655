"""Where in the audio the words of an attention decoder are: dynamic time warping of its cross-attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parley.asr.decoding.words import WORD_MARK
from parley.protocol import Word

_MARK = WORD_MARK.encode()
_SILENCE = 10 ** (-30 / 20)
"""Level below which nothing is spoken, in parts of that of speech."""
_SPEECH = 0.95
"""Quantile of the levels that is that of speech."""


@dataclass(frozen=True)
class Timing:
    """What is known of the cross-attention of a family."""

    frame: int
    """Samples of a vector of the encoder."""
    per_ms: int
    """Samples of a millisecond."""
    start_late: int
    """Vectors by which a word begins later than its first token looks at it: the decoder looks ahead."""
    end_late: int
    """Vectors by which a word ends later than what follows it looks at the audio."""

    def words(
        self,
        pieces: Sequence[bytes],
        logprobs: Sequence[float],
        attention: NDArray[np.float32],
        audio: NDArray[np.float32],
    ) -> list[Word]:
        """The words of a text, with times from the beginning of the audio.

        Args:
            pieces: of the tokens, with :data:`~parley.asr.decoding.words.WORD_MARK` before words.
            logprobs: of the tokens.
            attention: f32 ``[tokens or one more, heads, T]``, weights of each token and of what comes
                after the last.
            audio: f32 ``[n]``.
        """
        if not pieces:
            return []
        begins = [*first_frames(attention.mean(1)).tolist(), attention.shape[-1]]
        levels = np.sqrt(np.add.reduceat(audio**2, np.arange(0, len(audio), self.frame)) / self.frame)
        spoken = levels > _SILENCE * np.quantile(levels, _SPEECH)
        words = []
        for first, last, text in _words(pieces):
            start = min(begins[first] + self.start_late, len(levels) - 1)
            end = max(begins[last] + self.end_late, start + 1)
            # A token takes the silence before it too.
            start += int(spoken[start:end].argmax())
            words.append(
                Word(
                    text=text,
                    start_ms=min(start * self.frame, len(audio)) // self.per_ms,
                    end_ms=min(end * self.frame, len(audio)) // self.per_ms,
                    confidence=round(float(np.exp(logprobs[first:last]).mean()), 4),
                )
            )
        return words


def first_frames(weights: NDArray[np.float32]) -> NDArray[np.int64]:
    """Give each token vectors that follow those of the token before it, with the most weight together.

    The time is in proportion to ``T``, for up to some hundred tokens.

    Args:
        weights: f32 ``[N, T]``.

    Returns:
        The first vector of each token, i64 ``[N]``; the first is 0.
    """
    tokens, frames = weights.shape
    parts = -(-tokens // frames)  # of a vector, where there are more tokens than vectors
    columns = np.repeat(weights, parts, axis=1).T.astype(np.float64)
    best = np.full(tokens, -np.inf)
    best[0] = columns[0, 0]
    moved = np.zeros((len(columns), tokens), np.bool_)
    for at in range(1, len(columns)):
        np.greater(best[:-1], best[1:], out=moved[at, 1:])
        best[1:] = np.maximum(best[:-1], best[1:])
        best += columns[at]
    begins = np.zeros(tokens, np.int64)
    token = tokens - 1
    for at in range(len(columns) - 1, 0, -1):
        if moved[at, token]:
            begins[token] = at // parts
            token -= 1
    return begins


def _words(pieces: Sequence[bytes]) -> list[tuple[int, int, str]]:
    """The words: first token, the one after the last that is no punctuation, and text."""
    words: list[tuple[int, int, bytes]] = []
    for at, piece in enumerate(pieces):
        begins = piece.startswith(_MARK) or not words
        own = piece.removeprefix(_MARK)
        if begins:
            words.append((at, at + 1, own))
        else:
            first, last, before = words[-1]
            words[-1] = (first, at + 1 if not before or _is_spoken(own) else last, before + own)
    return [(first, last, text.decode(errors="ignore")) for first, last, text in words if text]


def _is_spoken(piece: bytes) -> bool:
    return not piece.isascii() or any(map(str.isalnum, piece.decode()))
