"""One stream of audio on its way to transcripts, without any model call of its own.

A piece of audio goes through three calls: :meth:`StreamSegmenter.accept` of the stream's ``track`` returns
the windows for the voice activity network, :meth:`OfflineStream.detected` takes their probabilities and
returns what must be decoded, :meth:`OfflineStream.resolve` turns the decoded tokens into events. So
one model call serves many streams (:mod:`parley.asr.parakeet.pipeline`).

An utterance is decoded anew, as a whole, for every partial text and for the final one. What is
longer than ``window_ms`` is cut where it is quietest, and the part before the cut is settled, so
that neither memory nor the time of one decoding grows with the length of the speech.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley.asr.checkpoint import Checkpoint
from parley.asr.decoding.boosting import compile_phrases
from parley.asr.decoding.words import StablePrefix, alternatives_of, text_of, transcript, words_of
from parley.asr.features import LogMel, LogMelStream
from parley.asr.messages import (
    AsrEvent,
    AsrOptions,
    OnsetEvent,
    OnsetLostEvent,
    SpeechStartedEvent,
    SpeechStoppedEvent,
    TranscriptEvent,
)
from parley.asr.parakeet.networks import DecodedPiece
from parley.asr.segmenter.segmentation import (
    FULL_SCALE,
    PER_MS,
    Sound,
    UtteranceAudio,
    UtteranceBegan,
    UtteranceEnded,
    UtteranceLimits,
)
from parley.asr.segmenter.turn_audio import JoinedTurn, TurnAudio, TurnUtterance, rest_of
from parley.asr.service import check_options
from parley.protocol import Alternative, Word


@dataclass(frozen=True)
class StreamLimits(UtteranceLimits):
    """How much of a stream is kept and decoded."""

    window_ms: int = 20_000
    """Longest audio that is decoded at once."""
    cut_search_ms: int = 5_000
    """How far back from the end of a full window the quietest place is searched."""


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
    joined: JoinedTurn | None = None
    """What it is joined with, in a final text: then it begins with the first of those."""


Step: TypeAlias = Sound | SpeechStartedEvent | SpeechStoppedEvent | DecodeJob


class OfflineStream:
    """The state of one stream.

    Its memory is bounded: ``window_ms`` of features, as many of the turn so far, the audio of its ``track``,
    and the words of ``max_utterance_ms``.
    """

    def __init__(
        self, checkpoint: Checkpoint, mel: LogMel, options: AsrOptions, limits: StreamLimits
    ) -> None:
        """Start silent.

        Raises:
            InvalidMessageError: the options are out of range.
        """
        check_options(options)
        self.boosting = compile_phrases(options.phrases, options.phrase_weight, checkpoint.vocabulary)
        """Phrases that the decoder favours."""
        self._checkpoint = checkpoint
        self._mel = mel
        self._options = options
        self._limits = limits
        self.track = limits.segmenter(options.vad)
        self._turn = TurnAudio(min(options.join_ms, limits.window_ms), mel.hop)
        self._utterance = 0
        self._onset = 0
        self._features: UtteranceFeatures | None = None
        self._decoded_at = 0
        self._settled: list[Word] = []
        self._last_text = ""
        self._stable = StablePrefix()

    def fork(self) -> OfflineStream:
        """Return an independent copy, so that a step can be tried and dropped if a model fails."""
        twin = copy.copy(self)
        twin.track = self.track.fork()
        twin._features = self._features.fork() if self._features else None  # noqa: SLF001 - same class
        twin._settled = list(self._settled)  # noqa: SLF001
        twin._stable = self._stable.fork()  # noqa: SLF001
        return twin

    def turn_over(self) -> None:
        """Join nothing that follows to what was said before."""
        self._turn = self._turn.closed()

    def detected(self, probabilities: NDArray[np.float32]) -> list[Step]:
        """Take the probabilities of the windows that :meth:`StreamSegmenter.accept` returned.

        Returns:
            What happened and what must be decoded, in order, for :meth:`resolve`.
        """
        steps: list[Step] = []
        for found in self.track.detected(probabilities):
            if isinstance(found, OnsetEvent | OnsetLostEvent):
                steps.append(found)
            elif isinstance(found, UtteranceBegan):
                self._begin(found)
                steps.append(found.event)
            elif isinstance(found, UtteranceAudio):
                self._add_speech(steps, found)
            else:
                self._finish(steps, found)
        self._add_partial(steps)
        return steps

    def resolve(self, steps: Sequence[Step], decoded: Sequence[DecodedPiece]) -> list[AsrEvent]:
        """Turn what :meth:`detected` returned into events; ``decoded``: of each :class:`DecodeJob`."""
        events: list[AsrEvent] = []
        results = iter(decoded)
        for step in steps:
            if not isinstance(step, DecodeJob):
                events.append(step)
                continue
            result = next(results)
            if step.joined is not None:
                events.append(self._read_together(step.utterance, step.joined, result))
                continue
            before = self._settled
            words = before + words_of(result.tokens, self._checkpoint, offset_ms=step.offset_ms)
            if step.kind == "settle":
                self._settled = words
                continue
            text = text_of(words)
            stable_words = None
            alternatives: list[Alternative] = []
            if step.kind == "final":
                alternatives = self._alternatives(before, result)
                self._begin_anew(step.utterance, text)
            else:
                stable_words = self._stable.push(text.split())
                if text == self._last_text:
                    continue
                self._last_text = text
            events.append(
                transcript(
                    step.utterance,
                    words,
                    is_final=step.kind == "final",
                    with_words=self._options.words,
                    stable_words=stable_words,
                    alternatives=alternatives,
                )
            )
        return events

    def _read_together(self, utterance: int, joined: JoinedTurn, result: DecodedPiece) -> TranscriptEvent:
        before, words = joined.split(words_of(result.tokens, self._checkpoint, offset_ms=0))
        self._begin_anew(utterance, text_of(words))
        return transcript(
            utterance,
            words,
            is_final=True,
            with_words=self._options.words,
            alternatives=rest_of(self._alternatives((), result), before),
            first=joined.first,
            before=before,
        )

    def _begin_anew(self, utterance: int, text: str) -> None:
        if not text:
            self._turn = self._turn.without(utterance)
        self._settled = []
        self._last_text = ""
        self._stable = StablePrefix()

    def _alternatives(self, settled: Sequence[Word], last: DecodedPiece) -> list[Alternative]:
        if not self._options.nbest:
            return []
        found = alternatives_of(last.alternatives, self._checkpoint, self._options.nbest)
        return [msgspec.structs.replace(own, text=f"{text_of(settled)} {own.text}".strip()) for own in found]

    def _begin(self, began: UtteranceBegan) -> None:
        self._utterance = began.event.utterance
        self._decoded_at = self._onset = began.onset
        self._features = UtteranceFeatures(self._mel, began.start)

    def _add_speech(self, steps: list[Step], audio: UtteranceAudio) -> None:
        assert self._features is not None
        self._features.push(audio.samples.astype(np.float32) / FULL_SCALE, audio.probability)
        if self._features.length_ms < self._limits.window_ms:
            return
        offset_ms = self._features.start_ms
        frames = self._features.cut(self._limits.cut_search_ms)
        steps.append(DecodeJob(self._utterance, "settle", offset_ms, frames))

    def _finish(self, steps: list[Step], ended: UtteranceEnded) -> None:
        assert self._features is not None
        steps.append(ended.event)
        frames, joined = self._features.finish(), None
        piece = self._features.piece(self._utterance, self._onset, ended.event.at_ms * PER_MS)
        if self._turn.limit_ms:
            self._turn = self._turn.closed() if piece is None else self._turn.with_piece(piece)
            joined = self._turn.joined()
        if joined is not None:
            frames = self._mel.normalized(joined.content)
        steps.append(DecodeJob(self._utterance, "final", self._features.start_ms, frames, joined))
        self._features = None

    def _add_partial(self, steps: list[Step]) -> None:
        interval = self._options.partial_interval_ms * PER_MS
        position = self.track.position
        if self._features is None or interval == 0 or position - self._decoded_at < interval:
            return
        self._decoded_at = position
        steps.append(DecodeJob(self._utterance, "partial", self._features.start_ms, self._features.so_far()))


class UtteranceFeatures:
    """Log-mel frames from the last cut (at first: the beginning) of an utterance until now.

    Each piece of audio is seen by the front end once; only the normalisation, which depends on all
    frames, is done anew each time the frames are asked for.
    """

    def __init__(self, mel: LogMel, start: int) -> None:
        """Begin an utterance.

        Args:
            mel: the front end.
            start: sample of the stream at which the utterance begins.
        """
        self._mel = mel
        self._hop = mel.hop
        self._stream = LogMelStream(mel)
        self._start = start
        self._first_frame = 0
        self._frames = [np.zeros((mel.bands, 0), np.float32)]
        self._speech: list[tuple[int, float]] = []
        self.position = start
        """Sample of the stream up to which audio has been pushed."""

    def fork(self) -> UtteranceFeatures:
        """Return an independent copy."""
        twin = copy.copy(self)
        twin._stream = self._stream.fork()  # noqa: SLF001 - same class
        twin._frames = list(self._frames)  # noqa: SLF001
        twin._speech = list(self._speech)  # noqa: SLF001
        return twin

    @property
    def start_ms(self) -> int:
        """Time of the first frame that is still held (milliseconds of the stream)."""
        return (self._start + self._first_frame * self._hop) // PER_MS

    @property
    def length_ms(self) -> int:
        """Audio since then (milliseconds)."""
        return self.position // PER_MS - self.start_ms

    def push(self, samples: NDArray[np.float32], probability: float) -> None:
        """Add audio.

        Args:
            samples: f32 ``[n]`` within ±1.
            probability: that its end is speech, 0-1.
        """
        middle = self.position + len(samples) // 2
        self.position += len(samples)
        self._frames.append(self._stream.push(samples))
        self._speech.append(((middle - self._start) // self._hop, probability))

    def so_far(self) -> NDArray[np.float32]:
        """All frames that are complete, normalised: f32 ``[bands, T]``."""
        return self._mel.normalized(self._join())

    def finish(self) -> NDArray[np.float32]:
        """All frames, normalised; the utterance takes no more audio after this."""
        self._frames.append(self._stream.finish())
        return self._mel.normalized(self._join())

    def piece(self, utterance: int, onset: int, end: int) -> TurnUtterance | None:
        """The finished utterance as part of a turn, its frames not normalised; None: its beginning is gone.

        ``onset`` and ``end``: samples of the stream.
        """
        return None if self._first_frame else TurnUtterance(utterance, self._start, onset, end, self._join())

    def cut(self, search_ms: int) -> NDArray[np.float32]:
        """Give away the frames before the quietest place of the last ``search_ms``.

        Returns:
            Those frames, normalised; the others stay.
        """
        frames = self._join()
        last = self._first_frame + frames.shape[1]
        earliest = max(last - search_ms * PER_MS // self._hop, self._first_frame + 1)
        candidates = [item for item in self._speech if earliest <= item[0] < last]
        # The latest of equally quiet places: the longer the stretch, the better it is recognised.
        at = min(reversed(candidates), key=lambda item: item[1])[0] if candidates else last
        head = frames[:, : at - self._first_frame]
        self._frames = [frames[:, at - self._first_frame :].copy()]
        self._speech = [item for item in self._speech if item[0] >= at]
        self._first_frame = at
        return self._mel.normalized(head)

    def _join(self) -> NDArray[np.float32]:
        joined = np.concatenate(self._frames, axis=1)
        self._frames = [joined]
        return joined
