"""From speech probabilities to the beginning and end of what a user says.

::

    idle ──p ≥ threshold──▶ pending ──lasts min_speech_ms──▶ speaking
     ▲                         │                                │
     └──────p < release────────┘◀──silence_ms below threshold───┘

The release threshold lies below the threshold, so that a probability that hovers does not cut
speech into pieces: only a window below it begins a silence, and only one at the threshold ends it.

The first window of what may be speech is reported at once, as an onset; it ends in speech or is lost, one
of the two. That holds for speech that begins anew after it was cut for its length, too.

The network is sure of vowels, and late with the voiceless sounds before them ("stop"). An ``onset_threshold``
below the threshold reports what it is not sure of yet; that is lost unless the threshold is reached within
``FAINT_MS``, and reported again only after it has been quiet in between.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import TypeAlias

from parley.errors import InvalidMessageError
from parley.protocol import VadOptions
from parley.vad.silero import SAMPLE_RATE, WINDOW

RELEASE_MARGIN = 0.15
"""How far the release threshold lies below the threshold, as Silero's own iterator has it."""
_MIN_RELEASE = 0.01
FAINT_MS = 160
"""How long an onset below the threshold is believed: five windows."""
MAX_MIN_SPEECH_MS = 2_000
DEFAULT_SILENCE_MS = 300
"""Silence that ends an utterance where neither client nor agent chooses."""
MIN_SILENCE_MS = 32
MAX_SILENCE_MS = 5_000

_PER_MS = SAMPLE_RATE // 1000
_FAINT = FAINT_MS * _PER_MS


@dataclass(frozen=True)
class OnsetHeard:
    """Something that may be speech has begun. Positions are samples of the stream."""

    onset: int
    """Where its first window begins."""


@dataclass(frozen=True)
class OnsetLost:
    """An onset that ended, or whose audio did, before it was long enough."""


@dataclass(frozen=True)
class SpeechBegan:
    """Speech has lasted long enough to be believed."""

    onset: int
    """Where it began: its first window at the threshold."""
    detected: int


@dataclass(frozen=True)
class SpeechEnded:
    """Silence has lasted long enough, or the utterance was ended early."""

    end: int
    """Where the speech ended; equal to ``detected`` if it had not ended by itself."""
    detected: int


Change: TypeAlias = OnsetHeard | OnsetLost | SpeechBegan | SpeechEnded


def check_options(options: VadOptions) -> None:
    """Refuse options that no stream can work with.

    Raises:
        InvalidMessageError: a value is out of its range.
    """
    if not (math.isfinite(options.threshold) and 0.0 < options.threshold < 1.0):
        raise InvalidMessageError(f"vad.threshold is {options.threshold}; it must lie between 0 and 1")
    if options.onset_threshold is not None and not 0.0 < options.onset_threshold <= options.threshold:
        raise InvalidMessageError(
            f"vad.onset_threshold is {options.onset_threshold}; it must lie between 0 and the threshold"
        )
    if not 0 <= options.min_speech_ms <= MAX_MIN_SPEECH_MS:
        raise InvalidMessageError(
            f"vad.min_speech_ms is {options.min_speech_ms}; it must be 0 to {MAX_MIN_SPEECH_MS}"
        )
    if options.silence_ms is not None and not MIN_SILENCE_MS <= options.silence_ms <= MAX_SILENCE_MS:
        raise InvalidMessageError(
            f"vad.silence_ms is {options.silence_ms}; it must be {MIN_SILENCE_MS} to {MAX_SILENCE_MS}"
        )


class SpeechSegmenter:
    """The state machine above, fed one window at a time."""

    def __init__(self, options: VadOptions, *, max_utterance_ms: int) -> None:
        """Start idle.

        Raises:
            InvalidMessageError: the options are out of range.
        """
        check_options(options)
        self._threshold = options.threshold
        self._release = min(options.threshold, max(options.threshold - RELEASE_MARGIN, _MIN_RELEASE))
        faint = options.onset_threshold
        self._onset_threshold = options.threshold if faint is None else faint
        self._min_speech = options.min_speech_ms * _PER_MS
        silence_ms = DEFAULT_SILENCE_MS if options.silence_ms is None else options.silence_ms
        self._silence = silence_ms * _PER_MS
        self._max_utterance = max_utterance_ms * _PER_MS
        self.position = 0
        """Samples seen so far."""
        self.onset: int | None = None
        """Where the speech that is going on, or may be beginning, began."""
        self._sound: int | None = None  # where the onset was that was reported, until its end is
        self._armed = True  # whether something below the threshold may be reported
        self.speaking = False
        """Whether an utterance is going on."""
        self.quiet_since: int | None = None
        """Where the silence began that may end the utterance that is going on."""

    def fork(self) -> SpeechSegmenter:
        """Return an independent copy."""
        return copy.copy(self)

    def push(self, probability: float, samples: int = WINDOW) -> list[Change]:
        """Take the next window's probability; say what has changed, in order.

        Args:
            probability: 0-1.
            samples: how much audio the window stands for; less than a whole one only where the
                audio was cut off by a flush.
        """
        start = self.position
        self.position += samples
        if not self.speaking:
            return self._wait(probability, start)
        ended = self._listen(probability, start)
        return [ended] if ended else []

    def flush(self) -> list[Change]:
        """End the utterance under way, as after enough silence."""
        if self.speaking:
            return [self._end(self.position if self.quiet_since is None else self.quiet_since)]
        return self._lose_onset()

    def _wait(self, probability: float, start: int) -> list[Change]:
        changes: list[Change] = []
        if self._is_onset(probability):
            self._sound = start
            changes.append(OnsetHeard(start))
        if self.onset is None and probability >= self._threshold:
            self.onset = start
        elif probability < self._release and self.onset is not None:
            changes += self._lose_onset()
        self._armed = self._sound is None and (self._armed or probability < self._onset_threshold)
        if self.onset is not None and self.position - self.onset >= self._min_speech:
            self.speaking, self._sound = True, None
            changes.append(SpeechBegan(self.onset, self.position))
        elif self.onset is None and self._sound is not None and self.position - self._sound >= _FAINT:
            changes += self._lose_onset()
        return changes

    def _is_onset(self, probability: float) -> bool:
        if self._sound is not None:
            return False
        return probability >= (self._onset_threshold if self._armed else self._threshold)

    def _lose_onset(self) -> list[Change]:
        lost: list[Change] = [] if self._sound is None else [OnsetLost()]
        self.onset = self._sound = None
        return lost

    def _listen(self, probability: float, start: int) -> SpeechEnded | None:
        if probability >= self._threshold:
            self.quiet_since = None
        elif probability < self._release and self.quiet_since is None:
            self.quiet_since = start
        if self.quiet_since is not None and self.position - self.quiet_since >= self._silence:
            return self._end(self.quiet_since)
        if self.onset is not None and self.position - self.onset >= self._max_utterance:
            return self._end(self.position)
        return None

    def _end(self, at: int) -> SpeechEnded:
        self.speaking = False
        self.onset = None
        self.quiet_since = None
        return SpeechEnded(at, self.position)
