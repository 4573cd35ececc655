"""Tokens into words with times and confidence."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence

from parley.asr.checkpoint import Checkpoint
from parley.asr.decoding.greedy import Tokens
from parley.asr.messages import TranscriptEvent
from parley.protocol import Alternative, Word

WORD_MARK = "\N{LOWER ONE EIGHTH BLOCK}"
"""SentencePiece's mark of the space before a word."""


def words_of(tokens: Tokens, checkpoint: Checkpoint, *, offset_ms: int = 0) -> list[Word]:
    """Join SentencePiece tokens into words.

    A token emitted at frame ``t`` with duration ``d`` spans frames ``[t, t + d]``; one of a transducer
    without durations spans ``[t, t + 1]``, but not beyond the start of the next word. These are
    NeMo's rules (``_compute_offsets_tdt`` and ``_compute_offsets`` in its ``rnnt_decoding.py``) but
    for words that would overlap. A word spans its tokens and has the mean of their confidences;
    blanks are not tokens. Control tokens such as ``<unk>`` and ``<en-US>`` are left out. Punctuation
    takes no time: it ends where the token before it ends.
    """
    config = checkpoint.config
    frame_ms, durations = config.frame_ms, bool(config.durations)
    pieces = [checkpoint.vocabulary[token] for token in tokens.ids.tolist()]
    words: list[Word] = []
    spelling: list[str] = []
    certainty: list[float] = []
    start_ms = end_ms = offset_ms

    def close() -> None:
        text = "".join(spelling)
        if text:
            words.append(
                Word(
                    text=text,
                    start_ms=start_ms,
                    end_ms=end_ms,
                    confidence=round(sum(certainty) / len(certainty), 4),
                )
            )
        spelling.clear()
        certainty.clear()

    for piece, frame, duration, confidence in zip(
        pieces,
        tokens.frames.tolist(),
        tokens.durations.tolist(),
        tokens.confidences.tolist(),
        strict=True,
    ):
        if _is_control(piece):
            continue
        if piece.startswith(WORD_MARK):
            if not durations:
                end_ms = min(end_ms, offset_ms + frame * frame_ms)
            close()
        own = piece.removeprefix(WORD_MARK)
        if not certainty:
            start_ms = offset_ms + frame * frame_ms
            end_ms = start_ms
        spelling.append(own)
        certainty.append(confidence)
        if not own or any(map(str.isalnum, own)):
            end_ms = offset_ms + (frame + (duration if durations else 1)) * frame_ms
    close()
    return words


def _is_control(piece: str) -> bool:
    own = piece.removeprefix(WORD_MARK)
    return own.startswith("<") and own.endswith(">")


def text_of(words: Sequence[Word]) -> str:
    """The words with single spaces between them."""
    return " ".join(word.text for word in words)


def spell(ids: Iterable[int], checkpoint: Checkpoint) -> str:
    """The text of tokens, as :func:`text_of` has it."""
    pieces = [checkpoint.vocabulary[token] for token in ids]
    text = "".join(piece for piece in pieces if not _is_control(piece))
    return " ".join(text.replace(WORD_MARK, " ").split())


def alternatives_of(
    readings: Iterable[tuple[Iterable[int], float]], checkpoint: Checkpoint, limit: int
) -> list[Alternative]:
    """The texts of readings, each of them once."""
    found: dict[str, float] = {}
    for ids, score in readings:
        found.setdefault(spell(ids, checkpoint), score)
    return [Alternative(text=text, score=round(score, 4)) for text, score in found.items()][:limit]


def combine_alternatives(parts: Sequence[Sequence[Alternative]], limit: int) -> list[Alternative]:
    """The best readings of a whole from those of its parts, best first; none if some part has none.

    The score is the mean over the parts.
    """
    found = [("", 0.0)] if parts else []
    for part in parts:
        pairs = [(f"{text} {own.text}".strip(), score + own.score) for text, score in found for own in part]
        found = sorted(pairs, key=lambda pair: -pair[1])[:limit]
    return [Alternative(text=text, score=round(score / len(parts), 4)) for text, score in found]


def confidence_of(words: Sequence[Word]) -> float:
    """Mean of the words' confidences; 0 where there are none."""
    return round(sum(word.confidence for word in words) / len(words), 4) if words else 0.0


def transcript(
    utterance: int,
    words: Sequence[Word],
    *,
    is_final: bool,
    with_words: bool,
    stable_words: int | None = None,
    alternatives: Sequence[Alternative] = (),
    first: int = 0,
    before: Sequence[Word] = (),
) -> TranscriptEvent:
    """What is said of an utterance's words.

    Args:
        utterance: its number.
        words: what was recognised.
        is_final: whether it has ended.
        with_words: whether to report their times.
        stable_words: how many of them will stay; None: all of a final text, and all but the last
            word of a model that never takes a token back.
        alternatives: the best readings.
        first: the first of the utterances with which it was read; 0: there is none.
        before: the words of those.
    """
    if stable_words is None:
        stable_words = len(words) if is_final else max(len(words) - 1, 0)
    return TranscriptEvent(
        utterance=utterance,
        text=text_of(words),
        is_final=is_final,
        confidence=confidence_of(words),
        words=list(words) if with_words else [],
        stable_words=stable_words,
        alternatives=list(alternatives),
        first=first,
        before=text_of(before),
    )


def agreed(one: Sequence[str], other: Sequence[str]) -> int:
    """How many first words two texts have in common."""
    for count, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return count
    return min(len(one), len(other))


class StablePrefix:
    """Follows the partial transcripts of one utterance: words on which two in a row agree are stable."""

    def __init__(self) -> None:
        self._before: Sequence[str] = ()

    def fork(self) -> StablePrefix:
        """Return an independent copy."""
        return copy.copy(self)

    def push(self, words: Sequence[str], alternatives: Sequence[Sequence[str]] = ()) -> int:
        """Take the next partial transcript.

        The last word of a partial is never stable: it may be the beginning of a longer one.

        ``alternatives``: other readings of the same audio.

        Returns:
            How many of its first words are stable.
        """
        others = (self._before, *alternatives)
        self._before = tuple(words)
        return max(min(len(words) - 1, *(agreed(words, other) for other in others)), 0)
