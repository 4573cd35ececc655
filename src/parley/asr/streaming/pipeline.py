"""Recognition of speech while it is being spoken, many streams in one step.

A step is one voice activity call for all streams, then rounds of one encoder call for each
look-ahead and one decoder call, until no stream has a full chunk. Silence does not reach the
encoder: only an utterance in progress holds a slot.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from parley.asr.checkpoint import Checkpoint
from parley.asr.decoding.boosting import PhraseAutomaton, compile_phrases
from parley.asr.decoding.words import alternatives_of, spell, text_of, transcript, words_of
from parley.asr.messages import AsrEvent, AsrOptions, OnsetEvent, OnsetLostEvent, TranscriptEvent
from parley.asr.segmenter.segmentation import (
    PER_MS,
    Detector,
    StreamSegmenter,
    UtteranceAudio,
    UtteranceBegan,
    UtteranceEnded,
    UtteranceLimits,
)
from parley.asr.segmenter.turn_audio import JoinedTurn, TurnAudio
from parley.asr.service import (
    ChunkRequest,
    ChunkResult,
    PendingChunk,
    check_options,
    run_vad,
    take_ready_events,
)
from parley.asr.streaming.final_transcripts import FinalTranscriber, FinalTranscript, wait_for
from parley.asr.streaming.recognizer import Recognizer
from parley.asr.streaming.utterance import StreamingUtterance
from parley.errors import InvalidMessageError, OverloadedError, ParleyError
from parley.protocol import Word


@dataclass(frozen=True)
class StreamingLimits(UtteranceLimits):
    """Limits of each stream."""

    early_ms: int = 96
    """Another model begins with its final text after this silence, in vain if the utterance goes on; 0: only
    at its end."""
    patience_s: float = 0.01
    """How long a step waits for final texts of other models, which otherwise come with a later one."""


@dataclass
class _Item:
    """A chunk on its way through the step."""

    work: PendingChunk[CacheAwareStream]
    utterances: list[StreamingUtterance] = field(default_factory=list)
    """The utterances that this chunk has audio for, in order."""
    finals: dict[int, FinalTranscript] = field(default_factory=dict)
    """Final texts of those that ended, by number."""
    claimed: list[int] = field(default_factory=list)
    """Slots of those that began."""


class StreamingPipeline:
    """:class:`parley.asr.service.RecognizerPipeline` of a cache-aware streaming model."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        recognizer: Recognizer,
        detector: Detector,
        final_transcriber: FinalTranscriber,
        *,
        chunks: Mapping[int, int],
        default_ms: int,
        limits: StreamingLimits,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Serve ``checkpoint``; ``chunks``: feature frames of a chunk by look-ahead (milliseconds)."""
        self._checkpoint = checkpoint
        self._recognizer = recognizer
        self._detector = detector
        self._final_transcriber = final_transcriber
        self._chunks = dict(chunks)
        self._default_ms = default_ms
        self._limits = limits
        self._clock = clock

    def new_stream(self, options: AsrOptions) -> CacheAwareStream:
        """Begin a stream.

        Raises:
            InvalidMessageError: the options are out of range.
            UnsupportedLanguageError: the model has no prompt for the language.
        """
        check_options(options)
        chosen = self._default_ms if options.lookahead_ms is None else options.lookahead_ms
        if chosen not in self._chunks:
            known = ", ".join(map(str, self._chunks))
            raise InvalidMessageError(f"lookahead_ms is {chosen}; this server has {known}")
        track = self._limits.segmenter(options.vad)
        boosting = compile_phrases(options.phrases, options.phrase_weight, self._checkpoint.vocabulary)
        return CacheAwareStream(
            track,
            options,
            chunk=self._chunks[chosen],
            boosting=boosting,
            prompt=self._checkpoint.prompt(options.language),
        )

    def release(self, stream: CacheAwareStream) -> None:
        """Free the slot of the utterance in progress, and cancel the texts that the stream waits for."""
        if stream.utterance is not None:
            stream.utterance.forget_early()
            if stream.utterance.slot is not None:
                self._recognizer.release(stream.utterance.slot)
        for text in stream.awaited:
            text.cancel()

    def step(
        self, chunks: Sequence[ChunkRequest[CacheAwareStream]]
    ) -> list[ChunkResult[CacheAwareStream] | ParleyError]:
        """Serve all chunks together.

        A chunk fails if voice activity could not be detected, or if its speech could not be
        recognised and no other model is there to do it. Its stream is then as it was before.
        """
        work, vad_ms = run_vad(chunks, self._detector, self._clock)
        items = [_Item(item) for item in work]
        try:
            for item in items:
                if item.work.error is None:
                    self._add_speech(item)
            rounds = self._recognizer.recognize([own for item in items for own in item.utterances])
            for item in items:
                if item.work.error is None:
                    self._add_transcripts(item)
        except BaseException:
            for item in items:
                self._roll_back(item)
            raise
        rounds.keep([slot for item in items for slot in self._commit(item)])
        self._await_finals(items)
        recognized = {id(utterance) for utterance in rounds.utterances}
        replies: list[ChunkResult[CacheAwareStream] | ParleyError] = []
        for item in items:
            busy = any(id(utterance) in recognized for utterance in item.utterances)
            replies.append(
                item.work.error
                or ChunkResult(
                    item.work.stream,
                    item.work.reply(
                        item.work.stream.take_events(),
                        vad_ms=vad_ms,
                        encoder_ms=rounds.encoder_ms if busy else 0.0,
                        decoder_ms=rounds.decoder_ms if busy else 0.0,
                        batch=len(chunks),
                    ),
                )
            )
        return replies

    def _add_speech(self, item: _Item) -> None:
        stream = item.work.stream
        if item.work.chunk.turn_over:
            stream.turn = stream.turn.closed()
            if stream.utterance is not None:
                stream.utterance.forget_early()
        if stream.utterance is not None:
            item.utterances.append(stream.utterance)
        for found in stream.track.detected(item.work.probabilities):
            if isinstance(found, OnsetEvent | OnsetLostEvent):
                stream.pending_events.append(found)
                continue
            if isinstance(found, UtteranceBegan):
                stream.utterance = self._begin(item, found)
                stream.pending_events.append(found.event)
                continue
            utterance = stream.utterance
            assert utterance is not None
            if isinstance(found, UtteranceAudio):
                self._recognizer.write(utterance, found.samples)
                utterance.push(found.samples)
            else:
                utterance.ended = True
                utterance.forget_early(unless_ended_ms=found.event.at_ms)
                final = FinalTranscript(
                    self._final_transcriber, utterance, stream.options, self._join(stream, found)
                )
                item.finals[utterance.number] = final
                stream.pending_events += [found.event, final]
                stream.utterance = None
        if stream.utterance is not None and self._limits.early_ms:
            self._begin_final_text(stream, stream.utterance)

    def _begin_final_text(self, stream: CacheAwareStream, utterance: StreamingUtterance) -> None:
        """Have the final text made while the pause may still end."""
        end, length = stream.track.quiet or (0, 0)
        utterance.forget_early(unless_ended_ms=end // PER_MS if length else None)
        if length >= self._limits.early_ms * PER_MS and utterance.early is None:
            joined = None
            if stream.options.join_ms:
                joined = stream.turn.with_piece(utterance.piece(end)).joined()
            self._final_transcriber.ask_early(utterance, end, joined, stream.options)

    def _join(self, stream: CacheAwareStream, ended: UtteranceEnded) -> JoinedTurn | None:
        """The audio for a model that transcribes the whole turn again: the utterance with those before it."""
        assert stream.utterance is not None
        if not stream.options.join_ms or not self._final_transcriber.policy.finals:
            return None
        stream.turn = stream.turn.with_piece(stream.utterance.piece(ended.event.at_ms * PER_MS))
        return stream.turn.joined()

    def _begin(self, item: _Item, began: UtteranceBegan) -> StreamingUtterance:
        stream = item.work.stream
        utterance = StreamingUtterance(
            began.event.utterance,
            began.start,
            onset=began.onset,
            chunk=stream.chunk,
            boosting=stream.boosting,
            prompt=stream.prompt,
            keep_audio=self._final_transcriber.policy.keeps_audio,
        )
        try:
            utterance.slot = self._recognizer.acquire()
            item.claimed.append(utterance.slot)
        except OverloadedError as error:
            utterance.failure = error
        item.utterances.append(utterance)
        return utterance

    def _add_transcripts(self, item: _Item) -> None:
        policy = self._final_transcriber.policy
        failed = [utterance for utterance in item.utterances if utterance.failure is not None]
        if failed and not policy.rescue:
            item.work.error = failed[0].failure
            return
        for utterance in failed:
            if not utterance.replaced:
                utterance.replaced = True
                self._report_replaced(item, utterance)
        for utterance in item.utterances:
            final = item.finals.get(utterance.number)
            if final is not None:
                nbest = item.work.stream.options.nbest
                alternatives = alternatives_of(utterance.readings(), self._checkpoint, nbest) if nbest else []
                final.set_own(self._words(utterance), alternatives, utterance.failure)
            elif utterance.failure is None and item.work.stream.options.partial_interval_ms:
                self._add_partial(item, utterance)

    def _report_replaced(self, item: _Item, utterance: StreamingUtterance) -> None:
        policy = self._final_transcriber.policy
        assert utterance.failure is not None
        event = self._final_transcriber.replace(
            utterance.number, policy.own, policy.rescue, utterance.failure
        )
        pending_events = item.work.stream.pending_events
        final = item.finals.get(utterance.number)
        pending_events.insert(pending_events.index(final) if final else len(pending_events), event)

    def _add_partial(self, item: _Item, utterance: StreamingUtterance) -> None:
        if not utterance.take_news():
            return
        words = self._words(utterance)
        text = text_of(words)
        stable_words = None
        if utterance.revised:
            others = [spell(ids, self._checkpoint).split() for ids, _ in utterance.readings()[1:]]
            stable_words = utterance.stable.push(text.split(), others)
        if text == utterance.reported:
            return
        utterance.reported = text
        with_words = item.work.stream.options.words
        item.work.stream.pending_events.append(
            transcript(
                utterance.number, words, is_final=False, with_words=with_words, stable_words=stable_words
            )
        )

    def _words(self, utterance: StreamingUtterance) -> list[Word]:
        return words_of(utterance.tokens(), self._checkpoint, offset_ms=utterance.start_ms)

    def _commit(self, item: _Item) -> list[int]:
        """Commit the step: return the slots of utterances that go on, and free the others."""
        if item.work.error is not None:
            self._roll_back(item)
            return []
        kept: list[int] = []
        for utterance in item.utterances:
            if utterance.slot is None:
                continue
            if utterance.ended or utterance.failure is not None:
                self._recognizer.release(utterance.slot)
                utterance.slot = None
            else:
                kept.append(utterance.slot)
        return kept

    def _roll_back(self, item: _Item) -> None:
        for slot in item.claimed:
            self._recognizer.release(slot)

    def _await_finals(self, items: Sequence[_Item]) -> None:
        """Wait a little for new final texts: all streams share this step.

        A text that takes longer comes with a later chunk. At the end of a stream there is no later chunk, and
        the streaming model's own text takes its place: a caller who hangs up must not stop the others.
        """
        alive = [item for item in items if item.work.error is None]
        # Only in the step that asks: what takes longer must not hold up one step after the other.
        wait_for(
            [text for item in alive for text in item.finals.values()],
            self._limits.patience_s,
            self._final_transcriber.clock,
        )
        for item in alive:
            if item.work.chunk.last:
                for text in item.work.stream.awaited:
                    text.end_stream()


class CacheAwareStream:
    """The state of a stream between two steps.

    Beside its ``track`` and the utterance that is being spoken it holds what waits behind a final
    text that another model has not yet written: at most what happens until that model's deadline. The
    turn's audio is bounded by ``options.join_ms``.
    """

    def __init__(
        self,
        track: StreamSegmenter,
        options: AsrOptions,
        *,
        chunk: int,
        boosting: PhraseAutomaton,
        prompt: int,
    ) -> None:
        """Start silent."""
        self.track = track
        self.options = options
        self.chunk = chunk
        self.boosting = boosting
        self.prompt = prompt
        self.utterance: StreamingUtterance | None = None
        self.turn = TurnAudio(options.join_ms)
        """Earlier utterances of the turn, with which the next one is read."""
        self.pending_events: list[AsrEvent | FinalTranscript] = []

    def fork(self) -> CacheAwareStream:
        """Return an independent copy."""
        twin = copy.copy(self)
        twin.track = self.track.fork()
        twin.utterance = self.utterance.fork() if self.utterance else None
        twin.pending_events = list(self.pending_events)
        return twin

    @property
    def awaited(self) -> list[FinalTranscript]:
        """Final texts that are not there yet."""
        return [item for item in self.pending_events if isinstance(item, FinalTranscript)]

    def take_events(self) -> list[AsrEvent]:
        """The events that are due: all before the first missing final text."""
        return take_ready_events(self.pending_events, self._poll)

    def _poll(self, text: FinalTranscript) -> list[AsrEvent] | None:
        events = text.poll()
        for event in events or ():
            if isinstance(event, TranscriptEvent) and not event.text:
                self.turn = self.turn.without(event.utterance)
        return events
