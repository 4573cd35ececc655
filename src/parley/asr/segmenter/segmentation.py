"""A stream of audio cut into utterances, without any model call of its own.

A piece of audio goes through two calls: :meth:`StreamSegmenter.accept` says what the voice activity
network must look at, and :meth:`StreamSegmenter.detected` takes its probabilities and says what
happened. In between, :func:`detect` asks the network about the windows of many streams at once.
Only the audio of utterances comes out: silence goes no further.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from parley.asr.messages import OnsetEvent, OnsetLostEvent, SpeechStartedEvent, SpeechStoppedEvent
from parley.protocol import VadOptions
from parley.vad.background import BackgroundTalk
from parley.vad.segmenter import Change, OnsetHeard, OnsetLost, SpeechBegan, SpeechEnded, SpeechSegmenter
from parley.vad.silero import CONTEXT, STATE, WINDOW

PER_MS = 16
FULL_SCALE = np.float32(32768)
"""What a 16-bit sample is divided by to lie within ±1."""


class Detector(Protocol):
    """The voice activity network. A failure is raised as a :class:`parley.errors.ParleyError`."""

    def detect(
        self,
        windows: NDArray[np.float32],
        counts: NDArray[np.int32],
        state: NDArray[np.float32],
        context: NDArray[np.float32],
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """See :meth:`parley.vad.silero.SileroVad.detect`."""
        ...


@dataclass(frozen=True)
class UtteranceBegan:
    """Speech has been detected; its audio follows."""

    event: SpeechStartedEvent
    onset: int
    """Sample of the stream at which the speech began."""
    start: int
    """Sample at which the utterance's audio begins: the onset less the pre-roll."""


@dataclass(frozen=True)
class UtteranceAudio:
    """The next piece of the utterance that is being spoken."""

    samples: NDArray[np.int16]
    probability: float
    """Probability that its end is speech, 0-1."""


@dataclass(frozen=True)
class UtteranceEnded:
    """The utterance is over; all of its audio has come."""

    event: SpeechStoppedEvent


Sound: TypeAlias = OnsetEvent | OnsetLostEvent
"""Events of sound without an utterance so far.

An :class:`OnsetEvent` comes before every :class:`UtteranceBegan`, and has the same time.
"""
Happening: TypeAlias = Sound | UtteranceBegan | UtteranceAudio | UtteranceEnded


@dataclass(frozen=True)
class UtteranceLimits:
    """How an utterance is cut out of its stream."""

    preroll_ms: int = 320
    """Audio before the onset that is recognised too, so that no soft first sound is lost."""
    max_utterance_ms: int = 60_000
    """Speech without a pause is ended after this time."""

    def segmenter(self, options: VadOptions) -> StreamSegmenter:
        """What cuts a new stream.

        Raises:
            InvalidMessageError: the options are out of range.
        """
        return StreamSegmenter(options, preroll_ms=self.preroll_ms, max_utterance_ms=self.max_utterance_ms)


class StreamSegmenter:
    """What is remembered of a stream between two pieces of its audio.

    It holds the audio that may still belong to an utterance: the pre-roll and ``min_speech_ms``
    while there is no speech, half of the silence so far while an utterance may end, and less than a
    window otherwise.
    """

    def __init__(self, options: VadOptions, *, preroll_ms: int, max_utterance_ms: int) -> None:
        """Start silent.

        Raises:
            InvalidMessageError: the options are out of range.
        """
        self._segmenter = SpeechSegmenter(options, max_utterance_ms=max_utterance_ms)
        self._preroll = preroll_ms * PER_MS
        self.vad_state = np.zeros(STATE, np.float32)
        self.vad_context = np.zeros(CONTEXT, np.float32)
        self._background = BackgroundTalk() if options.ignore_background else None
        self._powers: list[float] = []
        """Of the windows that :meth:`detected` gets the probabilities of."""
        self._audio = np.zeros(0, np.int16)
        self._audio_start = 0
        self._earliest_onset = 0
        self._flush = False
        self._utterance = 0
        self._spoken_until: int | None = None

    def fork(self) -> StreamSegmenter:
        """Return an independent copy (arrays are replaced, never changed, so they may be shared)."""
        twin = copy.copy(self)
        twin._segmenter = self._segmenter.fork()  # noqa: SLF001 - same class
        if self._background is not None:
            twin._background = self._background.fork()  # noqa: SLF001 - same class
        return twin

    @property
    def received(self) -> int:
        """Samples of the stream so far."""
        return self._audio_start + len(self._audio)

    @property
    def position(self) -> int:
        """Samples that have been judged so far."""
        return self._segmenter.position

    @property
    def quiet(self) -> tuple[int, int] | None:
        """The silence that may end the utterance that is going on: its first sample, and how many it has."""
        since = self._segmenter.quiet_since
        return None if since is None else (since, self._segmenter.position - since)

    def accept(self, audio: NDArray[np.int16], *, flush: bool = False) -> NDArray[np.float32]:
        """Take the next piece of audio.

        Args:
            audio: i16 ``[n]``, 16 kHz mono, any length.
            flush: end the utterance after this piece.

        Returns:
            The windows that are now complete, f32 ``[W, 512]`` within ±1; after a flush the last one
            is padded with zeros. :meth:`detected` wants the probability of each.
        """
        self._flush = flush
        self._audio = np.concatenate([self._audio, audio])
        unseen = self._audio[self._segmenter.position - self._audio_start :]
        count = len(unseen) // WINDOW
        if flush and len(unseen) % WINDOW:
            count += 1
            unseen = np.pad(unseen, (0, WINDOW - len(unseen) % WINDOW))
        windows = unseen[: count * WINDOW].reshape(count, WINDOW).astype(np.float32) / FULL_SCALE
        self._powers = np.mean(windows**2, axis=1).tolist()
        return windows

    def detected(self, probabilities: NDArray[np.float32]) -> list[Happening]:
        """Take the probabilities of the windows that :meth:`accept` returned; say what happened, in order."""
        happenings: list[Happening] = []
        for heard, power in zip(probabilities.tolist(), self._powers, strict=True):
            probability = heard
            if self._background is not None:
                probability = self._background.hear(power, heard, speaking=self._segmenter.speaking)
            position = self._segmenter.position
            changes = self._segmenter.push(probability, min(WINDOW, self.received - position))
            if self._spoken_until is not None:
                happenings.append(self._speak(self._spoken_until, probability))
            for change in changes:
                happenings += self._happened(change, probability)
        if self._flush:
            self._flush = False
            for change in self._segmenter.flush():
                happenings += self._happened(change, 0.0)
        self._forget()
        return happenings

    def _happened(self, change: Change, probability: float) -> list[Happening]:
        if isinstance(change, OnsetHeard):
            return [OnsetEvent(at_ms=change.onset // PER_MS)]
        if isinstance(change, OnsetLost):
            return [OnsetLostEvent()]
        if isinstance(change, SpeechBegan):
            return self._begin(change, probability)
        return [self._end(change)]

    def _begin(self, change: SpeechBegan, probability: float) -> list[Happening]:
        self._utterance += 1
        start = max(change.onset - self._preroll, self._earliest_onset)
        event = SpeechStartedEvent(utterance=self._utterance, at_ms=change.onset // PER_MS)
        return [UtteranceBegan(event, change.onset, start), self._speak(start, probability)]

    def _speak(self, start: int, probability: float) -> UtteranceAudio:
        end = self._spoken_until = self._segmenter.position
        return UtteranceAudio(self._audio[start - self._audio_start : end - self._audio_start], probability)

    def _end(self, change: SpeechEnded) -> UtteranceEnded:
        self._spoken_until = None
        self._earliest_onset = _between_utterances(change.end, change.detected)
        return UtteranceEnded(
            SpeechStoppedEvent(
                utterance=self._utterance,
                at_ms=change.end // PER_MS,
                detected_at_ms=change.detected // PER_MS,
            )
        )

    def _forget(self) -> None:
        """Drop the audio that nothing can ask for any more."""
        quiet = self._segmenter.quiet_since
        if quiet is not None:
            keep = _between_utterances(quiet, self._segmenter.position)
        elif self._spoken_until is not None:
            keep = self._spoken_until
        else:
            onset = self._segmenter.position if self._segmenter.onset is None else self._segmenter.onset
            keep = max(onset - self._preroll, self._earliest_onset)
        drop = max(keep - self._audio_start, 0)
        self._audio = self._audio[drop:]
        self._audio_start += drop


def _between_utterances(end: int, detected: int) -> int:
    """Where the next utterance may begin at the earliest.

    It may reach back into the silence after this one's ``end`` for its first sound, but not into
    this one's last.
    """
    return (end + detected) // 2


def detect(
    tracks: Sequence[StreamSegmenter], windows: Sequence[NDArray[np.float32]], detector: Detector
) -> list[NDArray[np.float32]]:
    """Score the windows of all streams in one call.

    Args:
        tracks: the streams; what the network remembers of each goes on.
        windows: f32 ``[W, 512]`` of each stream, of which some but not all may be empty.
        detector: the network.

    Returns:
        Each stream's probabilities, f32 ``[W]``.

    Raises:
        ParleyError: the network failed; the tracks are as they were.
    """
    counts = np.array([len(own) for own in windows], np.int32)
    batch = np.zeros((len(windows), counts.max(), WINDOW), np.float32)
    for row, own in enumerate(windows):
        batch[row, : counts[row]] = own
    probabilities, state, context = detector.detect(
        batch,
        counts,
        np.stack([track.vad_state for track in tracks]),
        np.stack([track.vad_context for track in tracks]),
    )
    for row, track in enumerate(tracks):
        track.vad_state = state[row]
        track.vad_context = context[row]
    return [probabilities[row, :count] for row, count in enumerate(counts.tolist())]
