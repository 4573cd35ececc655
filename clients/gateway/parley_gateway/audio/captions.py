"""Transcripts cut into segments, and as subtitles."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from parley.asr.messages import TranscribeReply
from parley.protocol import Word

_PAUSE_MS = 600
_LONGEST_MS = 15_000
_SENTENCE_ENDS = (".", "!", "?", "…")


@dataclass(frozen=True)
class CaptionSegment:
    """A part of a transcript that belongs together."""

    text: str
    start_s: float
    end_s: float
    confidence: float
    """0 to 1."""
    likelihood: float
    """Mean natural logarithm of the words' confidences."""
    words: Sequence[Word] = ()
    """Empty for a model without word times."""


def segments_of(reply: TranscribeReply) -> list[CaptionSegment]:
    """Cut at pauses, at the ends of sentences, and before a segment becomes too long.

    Without word times the model's own segments are used.
    """
    if not reply.words:
        return [
            CaptionSegment(
                one.text, one.start_ms / 1000, one.end_ms / 1000, one.confidence, _logarithm(one.confidence)
            )
            for one in reply.segments
        ]
    found: list[list[Word]] = []
    for word in reply.words:
        if not found or _ends(found[-1], word):
            found.append([])
        found[-1].append(word)
    return [_of_words(part) for part in found]


def _of_words(words: Sequence[Word]) -> CaptionSegment:
    return CaptionSegment(
        " ".join(word.text for word in words),
        words[0].start_ms / 1000,
        words[-1].end_ms / 1000,
        sum(word.confidence for word in words) / len(words),
        sum(_logarithm(word.confidence) for word in words) / len(words),
        words,
    )


def _logarithm(confidence: float) -> float:
    return math.log(max(confidence, 1e-6))


def _ends(part: Sequence[Word], following: Word) -> bool:
    last = part[-1]
    return (
        following.start_ms - last.end_ms >= _PAUSE_MS
        or last.text.endswith(_SENTENCE_ENDS)
        or following.end_ms - part[0].start_ms > _LONGEST_MS
    )


def verbose_segment(number: int, segment: CaptionSegment) -> dict[str, Any]:
    """A segment in the form of ``verbose_json``; what Parley's models do not know is 0 or empty."""
    text = segment.text
    raw = text.encode()
    return {
        "id": number,
        "seek": 0,
        "start": segment.start_s,
        "end": segment.end_s,
        "text": text,
        "tokens": [],
        "temperature": 0.0,
        "avg_logprob": segment.likelihood,
        "compression_ratio": len(raw) / len(zlib.compress(raw)),
        "no_speech_prob": 0.0,
    }


def to_srt(segments: Sequence[CaptionSegment]) -> str:
    """SubRip."""
    return "\n".join(
        f"{number}\n{_clock(one.start_s, ',')} --> {_clock(one.end_s, ',')}\n{one.text}\n"
        for number, one in enumerate(segments, 1)
    )


def to_vtt(segments: Sequence[CaptionSegment]) -> str:
    """WebVTT."""
    cues = (f"{_clock(one.start_s, '.')} --> {_clock(one.end_s, '.')}\n{one.text}\n" for one in segments)
    return "\n".join(["WEBVTT\n", *cues])


def _clock(seconds: float, point: str) -> str:
    whole, thousandths = divmod(round(seconds * 1000), 1000)
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}{point}{thousandths:03}"
