"""What of an answer has been sent, and how much of it the user has heard.

Pure bookkeeping: the time is always given by the caller, in seconds of one monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from parley.played_time import PlayedTime

_ROUNDING_MS = 2.0
"""Two lengths that differ by less are equal: marks are whole milliseconds."""
_LONGEST_WORD_MS = 600.0
"""Assumed of a word whose end is not known yet."""
SPOKEN_CHARACTERS_PER_MS = 0.015
"""Pace of ordinary speech, for synthesizers that do not say where words begin."""
_MOST_UNPLAYED_MS = 10_000.0
"""Audio of another session that a client may have without having played it."""


@dataclass(frozen=True)
class PlayedWord:
    """A word of a segment and where it begins."""

    start_char: int
    end_char: int
    """Half-open span in the segment's text."""
    at_ms: float
    """Counted from the segment's first sample."""


@dataclass(frozen=True)
class HeardSpeech:
    """What the user has heard of an answer."""

    played_ms: int
    parts: tuple[tuple[int, str], ...]
    """(round, text) of each segment that was heard, the last one perhaps not to its end."""

    @property
    def text(self) -> str:
        """All of it as one text."""
        return " ".join(text for _, text in self.parts)

    def text_of(self, round_number: int) -> str:
        """What was heard of one round's text."""
        return " ".join(text for number, text in self.parts if number == round_number)


@dataclass
class SentSpeech:
    """A segment of speech that was sent, or of which a part was."""

    round_number: int
    text: str
    begin_ms: float
    """In the response's audio."""
    sent_ms: float = 0.0
    complete: bool = False
    """Whether all of its audio was sent."""
    words: list[PlayedWord] = field(default_factory=list)

    def heard(self, played_ms: float) -> str:
        """What ``played_ms`` milliseconds of this segment's audio have spoken; negative: it has not begun."""
        if played_ms < 0:
            return ""
        if self.complete and played_ms >= self.sent_ms - _ROUNDING_MS:
            return self.text
        if not self.words:
            return self._estimate(played_ms)
        end = 0
        for index, word in enumerate(self.words):
            if played_ms < (word.at_ms + self._end_of(index)) / 2:
                break
            end = word.end_char
        return self.text[:end].rstrip()

    def _end_of(self, index: int) -> float:
        word = self.words[index]
        if index + 1 < len(self.words):
            return self.words[index + 1].at_ms
        latest = word.at_ms + _LONGEST_WORD_MS
        return min(self.sent_ms, latest) if self.complete else latest

    def _estimate(self, played_ms: float) -> str:
        pace = SPOKEN_CHARACTERS_PER_MS
        if self.complete and self.sent_ms > 0:
            pace = len(self.text) / self.sent_ms
        count = int(played_ms * pace)
        if count >= len(self.text):
            return self.text if self.complete else self.text.rpartition(" ")[0]
        return self.text[: count + 1].rpartition(" ")[0]


class Playout(PlayedTime):
    """The ledger of one response: the audio that was sent and played, and what it says.

    A word counts as heard when at least half of it was played.
    """

    def __init__(self) -> None:
        super().__init__()
        self.segments: list[SentSpeech] = []
        """What was sent."""

    def restore_speech(
        self, segments: Iterable[SentSpeech], *, sent_ms: float, played_ms: float, now: float
    ) -> None:
        """Begin with audio that another session has sent, and that the client goes on playing.

        ``segments`` are what it says, in order; their ``sent_ms`` are set here.
        """
        self.segments = list(segments)
        ends_ms = [*(one.begin_ms for one in self.segments[1:]), sent_ms]
        for segment, end_ms in zip(self.segments, ends_ms, strict=False):
            segment.sent_ms = end_ms - segment.begin_ms
        self.restore(sent_ms, max(played_ms, sent_ms - _MOST_UNPLAYED_MS), now)

    def begin(self, round_number: int, text: str) -> None:
        """The next audio belongs to this segment; all of the one before it was sent."""
        self.segments.append(SentSpeech(round_number, text, self.length_ms))

    def sent(self, length_ms: float, words: Iterable[PlayedWord], now: float) -> None:
        """A piece of the current segment was sent, in which ``words`` begin."""
        segment = self.segments[-1]
        segment.words.extend(words)
        segment.sent_ms += length_ms
        self.add(length_ms, now)

    def complete(self) -> None:
        """The current segment has no more audio."""
        self.segments[-1].complete = True

    def finished(self, now: float) -> bool:
        """Whether everything sent so far was played."""
        return self.played_ms(now) >= self.length_ms - _ROUNDING_MS

    def heard(self, now: float) -> HeardSpeech:
        """What the user has heard."""
        return self.heard_after(self.played_ms(now))

    def heard_after(self, played_ms: float) -> HeardSpeech:
        """What so much of the audio that was sent has said."""
        played = min(max(played_ms, 0.0), self.length_ms)
        parts: list[tuple[int, str]] = []
        for segment in self.segments:
            text = segment.heard(played - segment.begin_ms)
            if text:
                parts.append((segment.round_number, text))
            if text != segment.text:
                break
        return HeardSpeech(round(played), tuple(parts))
