"""One stream of audio on its way to transcripts, without any model call of its own.

A piece of audio goes through three calls: :meth:`AsrStream.accept` says what the voice activity
network must look at, :meth:`AsrStream.detected` takes its probabilities and says what must be
decoded, :meth:`AsrStream.resolve` turns the decoded tokens into events. Whoever makes the model
calls can so make one for many streams (:mod:`parley.asr.rail`).

An utterance is decoded anew, as a whole, for every partial text and for the final one. What is
longer than ``window_ms`` is cut where it is quietest, and the part before the cut is settled, so
that neither memory nor the time of one decoding grows with the length of the speech.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from parley.asr.checkpoint import Checkpoint
from parley.asr.frontend import LogMel
from parley.asr.messages import (
    AsrEvent,
    AsrOptions,
    SpeechStartedEvent,
    SpeechStoppedEvent,
    TranscriptEvent,
)
from parley.asr.transducer import Tokens
from parley.asr.utterance import UtteranceFeatures
from parley.asr.words import confidence_of, text_of, words_of
from parley.errors import InvalidMessageError
from parley.protocol import Word
from parley.vad.segmenter import Segmenter, SpeechBegan, SpeechEnded
from parley.vad.silero import CONTEXT, STATE, WINDOW

MAX_PARTIAL_INTERVAL_MS = 60_000
_PER_MS = 16


@dataclass(frozen=True)
class StreamLimits:
    """How much of a stream is kept and looked at."""

    preroll_ms: int = 320
    """Audio before the onset that is decoded too, so that no soft first sound is lost."""
    window_ms: int = 20_000
    """Longest audio that is decoded at once."""
    cut_search_ms: int = 5_000
    """How far back from the end of a full window the quietest place is looked for."""
    max_utterance_ms: int = 60_000
    """Speech without a pause is ended after this time."""


@dataclass(frozen=True)
class DecodeJob:
    """A stretch of an utterance that must be encoded and decoded."""

    utterance: int
    kind: Literal["partial", "settle", "final"]
    """``settle``: the stretch ends in the middle of an utterance and will not be decoded again."""
    offset_ms: int
    """Where the stretch begins in the stream."""
    features: NDArray[np.float32]
    """f32 ``[bands, T]``, normalised; ``T`` may be 0."""


Step: TypeAlias = SpeechStartedEvent | SpeechStoppedEvent | DecodeJob


class AsrStream:
    """Everything that is remembered of one stream.

    Its memory is bounded: ``window_ms`` of features, ``preroll_ms`` and ``min_speech_ms`` of audio,
    and the words of ``max_utterance_ms``.
    """

    def __init__(
        self, checkpoint: Checkpoint, mel: LogMel, options: AsrOptions, limits: StreamLimits
    ) -> None:
        """Start silent.

        Args:
            checkpoint: vocabulary and frame length.
            mel: the front end, shared by all streams.
            options: the client's wishes.
            limits: the server's.

        Raises:
            InvalidMessageError: the options are out of range.
        """
        if not 0 <= options.partial_interval_ms <= MAX_PARTIAL_INTERVAL_MS:
            raise InvalidMessageError(
                f"partial_interval_ms is {options.partial_interval_ms}; "
                f"it must be 0 to {MAX_PARTIAL_INTERVAL_MS}"
            )
        self._checkpoint = checkpoint
        self._mel = mel
        self._options = options
        self._limits = limits
        self._segmenter = Segmenter(options.vad, max_utterance_ms=limits.max_utterance_ms)
        self.vad_state = np.zeros(STATE, np.float32)
        self.vad_context = np.zeros(CONTEXT, np.float32)
        self._audio = np.zeros(0, np.float32)
        self._audio_start = 0
        self._earliest_onset = 0
        self._flush = False
        self._utterance = 0
        self._features: UtteranceFeatures | None = None
        self._decoded_at = 0
        self._settled: list[Word] = []
        self._last_text = ""

    def fork(self) -> AsrStream:
        """Return an independent copy, so that a step can be tried and dropped if a model fails."""
        twin = copy.copy(self)
        twin._segmenter = self._segmenter.fork()  # noqa: SLF001 - same class
        twin._features = self._features.fork() if self._features else None  # noqa: SLF001
        twin._settled = list(self._settled)  # noqa: SLF001
        return twin

    @property
    def received(self) -> int:
        """Samples of the stream so far."""
        return self._audio_start + len(self._audio)

    def accept(self, audio: NDArray[np.int16], *, flush: bool = False) -> NDArray[np.float32]:
        """Take the next piece of audio.

        Args:
            audio: i16 ``[n]``, 16 kHz mono, any length.
            flush: end the utterance after this piece.

        Returns:
            The windows that are now complete, f32 ``[W, 512]``; after a flush the last one is
            padded with zeros. :meth:`detected` wants the probability of each.
        """
        self._flush = flush
        self._audio = np.concatenate([self._audio, audio.astype(np.float32) / np.float32(32768)])
        unseen = self._audio[self._segmenter.position - self._audio_start :]
        count = len(unseen) // WINDOW
        if flush and len(unseen) % WINDOW:
            count += 1
            unseen = np.pad(unseen, (0, WINDOW - len(unseen) % WINDOW))
        return unseen[: count * WINDOW].reshape(count, WINDOW)

    def detected(self, probabilities: NDArray[np.float32]) -> list[Step]:
        """Take the probabilities of the windows that :meth:`accept` returned.

        Returns:
            What happened and what must be decoded, in order, for :meth:`resolve`.
        """
        steps: list[Step] = []
        for probability in probabilities.tolist():
            position = self._segmenter.position
            change = self._segmenter.push(probability, min(WINDOW, self.received - position))
            if self._features is not None:
                self._hear(steps, probability)
            if isinstance(change, SpeechBegan):
                steps.append(self._begin(change, probability))
            elif isinstance(change, SpeechEnded):
                self._finish(steps, change)
        if self._flush:
            ended = self._segmenter.flush()
            if ended:
                self._finish(steps, ended)
            self._flush = False
        self._add_partial(steps)
        self._forget()
        return steps

    def resolve(self, steps: Sequence[Step], decoded: Sequence[Tokens]) -> list[AsrEvent]:
        """Turn the steps into events.

        Args:
            steps: what :meth:`detected` returned.
            decoded: the tokens of each of its :class:`DecodeJob`, in order.
        """
        events: list[AsrEvent] = []
        results = iter(decoded)
        for step in steps:
            if not isinstance(step, DecodeJob):
                events.append(step)
                continue
            words = self._settled + words_of(next(results), self._checkpoint, offset_ms=step.offset_ms)
            if step.kind == "settle":
                self._settled = words
                continue
            text = text_of(words)
            if step.kind == "final":
                self._settled = []
                self._last_text = ""
            elif text == self._last_text:
                continue
            else:
                self._last_text = text
            events.append(
                TranscriptEvent(
                    utterance=step.utterance,
                    text=text,
                    is_final=step.kind == "final",
                    confidence=confidence_of(words),
                    words=words if self._options.words else [],
                )
            )
        return events

    def _begin(self, change: SpeechBegan, probability: float) -> SpeechStartedEvent:
        self._utterance += 1
        self._decoded_at = change.onset
        start = max(change.onset - self._limits.preroll_ms * _PER_MS, self._earliest_onset)
        self._features = UtteranceFeatures(self._mel, start)
        self._features.push(self._between(start, change.detected), probability)
        return SpeechStartedEvent(utterance=self._utterance, at_ms=change.onset // _PER_MS)

    def _hear(self, steps: list[Step], probability: float) -> None:
        """Add the audio up to the segmenter's position to the utterance; settle a full window."""
        assert self._features is not None
        self._features.push(self._between(self._features.position, self._segmenter.position), probability)
        if self._features.length_ms < self._limits.window_ms:
            return
        offset_ms = self._features.start_ms
        frames = self._features.cut(self._limits.cut_search_ms)
        steps.append(DecodeJob(self._utterance, "settle", offset_ms, frames))

    def _finish(self, steps: list[Step], change: SpeechEnded) -> None:
        assert self._features is not None
        steps.append(
            SpeechStoppedEvent(
                utterance=self._utterance,
                at_ms=change.end // _PER_MS,
                detected_at_ms=change.detected // _PER_MS,
            )
        )
        frames = self._features.finish()
        steps.append(DecodeJob(self._utterance, "final", self._features.start_ms, frames))
        self._features = None
        # The next utterance may reach back into this silence for its first sound, but not into
        # this utterance's last one.
        self._earliest_onset = (change.end + change.detected) // 2

    def _add_partial(self, steps: list[Step]) -> None:
        interval = self._options.partial_interval_ms * _PER_MS
        position = self._segmenter.position
        if self._features is None or interval == 0 or position - self._decoded_at < interval:
            return
        self._decoded_at = position
        steps.append(DecodeJob(self._utterance, "partial", self._features.start_ms, self._features.so_far()))

    def _between(self, start: int, end: int) -> NDArray[np.float32]:
        return self._audio[start - self._audio_start : end - self._audio_start]

    def _forget(self) -> None:
        """Drop the audio that nothing can ask for any more."""
        if self._features is not None:
            keep = self._features.position
        else:
            onset = self._segmenter.position if self._segmenter.onset is None else self._segmenter.onset
            keep = max(onset - self._limits.preroll_ms * _PER_MS, self._earliest_onset)
        drop = max(keep - self._audio_start, 0)
        self._audio = self._audio[drop:]
        self._audio_start += drop
