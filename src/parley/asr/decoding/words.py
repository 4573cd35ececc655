"""Tokens into words with times and confidence."""

from __future__ import annotations

from collections.abc import Sequence

from parley.asr.checkpoint import Checkpoint
from parley.asr.decoding.transducer import Tokens
from parley.asr.messages import TranscriptEvent
from parley.protocol import Word

_WORD_MARK = "▁"


def words_of(tokens: Tokens, checkpoint: Checkpoint, *, offset_ms: int = 0) -> list[Word]:
    """Join SentencePiece tokens into words.

    A token emitted at frame ``t`` with duration ``d`` spans frames ``[t, t + d]``; one of a transducer
    without durations spans ``[t, t + 1]``, but not beyond the start of the next word. These are
    NeMo's rules (``_compute_offsets_tdt`` and ``_compute_offsets`` in its ``rnnt_decoding.py``) but
    for words that would overlap. A word spans its tokens and has the mean of their confidences;
    blanks are not tokens. Control tokens such as ``<unk>`` are left out. Punctuation takes no time:
    it ends where the token before it ends.

    Args:
        tokens: one row's tokens.
        checkpoint: whose vocabulary and frame length apply.
        offset_ms: time of the encoder frame 0 (milliseconds).
    """
    frame_ms = checkpoint.config.frame_ms
    has_durations = bool(checkpoint.config.durations)
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

    for token, frame, duration, confidence in zip(
        tokens.ids.tolist(),
        tokens.frames.tolist(),
        tokens.durations.tolist(),
        tokens.confidences.tolist(),
        strict=True,
    ):
        piece = checkpoint.vocabulary[token]
        if piece.startswith("<") and piece.endswith(">"):
            continue
        if piece.startswith(_WORD_MARK):
            if not has_durations:
                end_ms = min(end_ms, offset_ms + frame * frame_ms)
            close()
            piece = piece.removeprefix(_WORD_MARK)
        if not certainty:
            start_ms = offset_ms + frame * frame_ms
            end_ms = start_ms
        spelling.append(piece)
        certainty.append(confidence)
        if not piece or any(character.isalnum() for character in piece):
            end_ms = offset_ms + (frame + (duration if has_durations else 1)) * frame_ms
    close()
    return words


def text_of(words: Sequence[Word]) -> str:
    """The words with single spaces between them."""
    return " ".join(word.text for word in words)


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
) -> TranscriptEvent:
    """What is said of an utterance's words.

    Args:
        utterance: its number.
        words: what was recognised.
        is_final: whether it has ended.
        with_words: whether to tell their times.
        stable_words: how many of them will stay; None: all of a final text, and all but the last
            word of a model that never takes a token back.
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
    )
