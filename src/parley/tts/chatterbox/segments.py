"""The pieces in which a text is spoken."""

from __future__ import annotations

from dataclasses import dataclass

from parley.tts.segmenter import SegmentLimits, TextSegmenter


@dataclass(frozen=True)
class TextSegment:
    """What T3 gets at once."""

    number: int
    """Of the utterance's segments, from 0."""
    text: str
    first_char: int
    """Where it begins in the utterance's text."""


def cut(text: str, longest: int) -> list[str]:
    """``text`` in pieces of about ``longest`` characters at most, cut after sentences if possible.

    Together the pieces are the text: nothing is lost between them.
    """
    if len(text) <= longest:
        return [text]
    clause = longest * 2 // 3
    segmenter = TextSegmenter(
        SegmentLimits(first_clause=clause, first_longest=longest, clause=clause, longest=longest)
    )
    sentences = [*segmenter.push(text), *segmenter.finish()]
    begins = [0]
    position = 0
    for sentence in sentences:
        position = text.index(sentence, position)
        # Short sentences stay together: T3 says them better with what is around them.
        if position + len(sentence) - begins[-1] > longest and position > begins[-1]:
            begins.append(position)
        position += len(sentence)
    return [text[begin:end] for begin, end in zip(begins, [*begins[1:], len(text)], strict=True)]
