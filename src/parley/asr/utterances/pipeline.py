"""Streams: voice activity in the step of all streams, transcription in a thread beside it.

A step never waits for a text: finished texts are returned, and the rest comes with a later piece of
audio. So a long text of one stream does not delay the VAD of others.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from parley.asr.decoding.boosting import fit_phrases
from parley.asr.messages import AsrEvent, AsrOptions, OnsetEvent, OnsetLostEvent, TranscriptEvent
from parley.asr.reader import (
    Reader,
    ReadOptions,
    RecognizedText,
    Stretch,
    combine_confidences,
    combine_texts,
    combine_words,
)
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
from parley.asr.utterances.utterance import EarlyText, OpenUtterance, PartialText, PendingText, Window
from parley.asr.utterances.worker import ReadRequest, Source, TextReader
from parley.errors import OverloadedError, ParleyError

_REST = 3
"""A partial text is begun this many times as long after the last one as that took, so that partial texts take
a third of the time at most: under load there are fewer."""


@dataclass(frozen=True)
class SegmentPipelineLimits(UtteranceLimits):
    """Limits of each stream."""

    window: Window = field(default_factory=Window)
    early_ms: int = 96
    """The final text is begun after this silence, in vain if the utterance goes on; 0: at its end."""


@dataclass
class _Item:
    """A chunk on its way through the step."""

    work: PendingChunk[SegmentStream]
    asked: list[ReadRequest] = field(default_factory=list)


class SegmentPipeline:
    """:class:`parley.asr.service.RecognizerPipeline` of networks that read stretches as a whole."""

    def __init__(
        self,
        reader: Reader,
        text_reader: TextReader,
        detector: Detector,
        limits: SegmentPipelineLimits,
        *,
        model: str,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Serve streams."""
        self._reader = reader
        self._text_reader = text_reader
        self._detector = detector
        self._limits = limits
        self._model = model
        self._clock = clock

    def new_stream(self, options: AsrOptions) -> SegmentStream:
        """Begin a stream.

        Raises:
            InvalidMessageError: the options are out of range.
            UnsupportedLanguageError: the model does not understand the language.
        """
        check_options(options)
        track = self._limits.segmenter(options.vad)
        phrases = options.phrases
        if self._reader.favours_names:
            phrases = fit_phrases(phrases, options.names)
        reading = self._reader.options(options.language, phrases, options.phrase_weight)
        return SegmentStream(track, options, reading, longest_ms=self._limits.window.longest_ms)

    def release(self, stream: SegmentStream) -> None:
        """Cancel the texts that the stream waits for."""
        if stream.utterance is not None:
            stream.utterance.drop()
        for pending in stream.awaited:
            pending.drop()

    def step(
        self, chunks: Sequence[ChunkRequest[SegmentStream]]
    ) -> list[ChunkResult[SegmentStream] | ParleyError]:
        """Serve all chunks together: one voice activity call.

        A chunk fails if voice activity could not be detected, if a text that is due could not be read, or if
        the queue is full. Its stream is then as it was before.
        """
        try:
            self._text_reader.check()
        except ParleyError as error:
            return [error for _ in chunks]
        work, vad_ms = run_vad(chunks, self._detector, self._clock)
        return [self._serve(_Item(item), vad_ms, len(chunks)) for item in work]

    def _serve(self, item: _Item, vad_ms: float, batch: int) -> ChunkResult[SegmentStream] | ParleyError:
        if item.work.error is not None:
            return item.work.error
        stream = item.work.stream
        try:
            self._add_speech(item)
            self._ask_ahead(item)
            self._take_partial(stream)
            if item.work.chunk.last:
                for pending in stream.awaited:
                    pending.end_stream()
            events = stream.take_events()
        except ParleyError as error:
            for asked in item.asked:
                asked.drop()
            return error
        reply = item.work.reply(
            events,
            vad_ms=vad_ms,
            encoder_ms=round(sum(text.encoder_ms for text in stream.read), 3),
            decoder_ms=round(sum(text.decoder_ms for text in stream.read), 3),
            batch=batch,
        )
        return ChunkResult(stream, reply)

    def _add_speech(self, item: _Item) -> None:
        stream = item.work.stream
        if item.work.chunk.turn_over:
            stream.turn_over()
        for found in stream.track.detected(item.work.probabilities):
            if isinstance(found, OnsetEvent | OnsetLostEvent):
                stream.pending_events.append(found)
            elif isinstance(found, UtteranceBegan):
                stream.utterance = OpenUtterance(
                    found.event.utterance, found.start, found.onset, self._limits.window
                )
                stream.pending_events.append(found.event)
            elif isinstance(found, UtteranceAudio):
                assert stream.utterance is not None
                self._add(item, stream.utterance, found)
            else:
                assert stream.utterance is not None
                self._end(item, stream.utterance, found)
                stream.utterance = None

    def _add(self, item: _Item, utterance: OpenUtterance, audio: UtteranceAudio) -> None:
        utterance.push(audio.samples)
        if utterance.is_full:
            start = utterance.rest_start
            utterance.settled.append(self._ask(item, utterance.cut(), start, utterance.number, final=True))

    def _end(self, item: _Item, utterance: OpenUtterance, ended: UtteranceEnded) -> None:
        stream = item.work.stream
        utterance.forget_partial()
        utterance.forget_early(unless_ended_ms=ended.event.at_ms)
        joined = None
        if stream.options.join_ms:
            piece = utterance.piece(ended.event.at_ms * PER_MS)
            stream.turn = stream.turn.closed() if piece is None else stream.turn.with_piece(piece)
            joined = stream.turn.joined()
        if utterance.early is not None and not utterance.early.asked.dropped:
            asked, joined = utterance.early.asked, utterance.early.joined
        else:
            asked = self._ask_whole(item, utterance, joined)
        pending = PendingText(
            self._text_reader,
            utterance.number,
            [*utterance.settled, asked],
            joined,
            utterance.reported,
            with_words=stream.options.words,
            model=self._model,
        )
        stream.pending_events += [ended.event, pending]

    def _ask_ahead(self, item: _Item) -> None:
        """Have the utterance in progress read: its partial text, or early its final one."""
        stream, utterance = item.work.stream, item.work.stream.utterance
        if utterance is None:
            return
        end, length = stream.track.quiet or (0, 0)
        utterance.forget_early(unless_ended_ms=end // PER_MS if length else None)
        if self._limits.early_ms and length >= self._limits.early_ms * PER_MS:
            if utterance.early is None or utterance.early.asked.dropped:
                with suppress(OverloadedError):  # it is asked for again at the end of the utterance
                    utterance.early = self._begin_final_text(item, utterance, end)
        elif stream.options.partial_interval_ms:
            self._ask_partial(item, utterance)

    def _begin_final_text(self, item: _Item, utterance: OpenUtterance, end: int) -> EarlyText:
        """Have the final text made while the pause may still end."""
        stream, joined = item.work.stream, None
        piece = utterance.piece(end)
        if stream.options.join_ms and piece is not None:
            joined = stream.turn.with_piece(piece).joined()
        return EarlyText(self._ask_whole(item, utterance, joined), joined, end)

    def _ask_partial(self, item: _Item, utterance: OpenUtterance) -> None:
        waited_ms = (utterance.position - utterance.asked_at) / PER_MS
        interval_ms = item.work.stream.options.partial_interval_ms
        if utterance.partial is not None or waited_ms < max(interval_ms, utterance.rest_ms):
            return
        utterance.asked_at = utterance.position
        try:
            asked = self._ask(item, utterance.rest(), utterance.rest_start, utterance.number, final=False)
        except OverloadedError:
            return  # a later one follows, or the final text
        utterance.partial = PartialText(asked, len(utterance.settled))

    def _ask_whole(self, item: _Item, utterance: OpenUtterance, joined: JoinedTurn | None) -> ReadRequest:
        """Have an utterance read to its end, with those that it is joined to."""
        if joined is None:
            return self._ask(item, utterance.rest(), utterance.rest_start, utterance.number, final=True)
        return self._ask(item, joined.content, 0, joined.first, final=True)

    def _ask(
        self, item: _Item, audio: NDArray[np.int16], start: int, utterance: int, *, final: bool
    ) -> ReadRequest:
        """Have audio read that begins at a sample of the stream, or of what is joined."""
        stream = item.work.stream
        stretch = Stretch(audio, stream.reading, start // PER_MS)
        source = Source(stream.identity, utterance)
        asked = self._text_reader.ask(stretch, final=final, of=source, beside=item.asked)
        item.asked.append(asked)
        return asked

    def _take_partial(self, stream: SegmentStream) -> None:
        """Report the partial text that was asked for, if it is there and differs from the last."""
        utterance = stream.utterance
        if utterance is None or utterance.partial is None:
            return
        asked, settled = utterance.partial.asked, utterance.settled[: utterance.partial.settled]
        if asked.dropped:
            utterance.partial = None
            return
        if not asked.done or not all(piece.done for piece in settled):
            return
        utterance.partial = None
        utterance.rest_ms = _REST * asked.took_ms
        try:
            read = asked.result()
        except ParleyError:
            asked.drop()  # report it once
            raise
        if read is None or not read.text:
            return
        stream.read.append(read)
        # A settled piece that failed is read again for the final text.
        before = (piece.result() for piece in settled if piece.future.exception() is None)
        texts = [*(piece for piece in before if piece is not None), read]
        text = combine_texts(texts)
        stable_words = utterance.stable.push(text.split())
        if text == utterance.reported:
            return
        utterance.reported = text
        stream.pending_events.append(
            TranscriptEvent(
                utterance=utterance.number,
                text=text,
                is_final=False,
                confidence=combine_confidences(texts),
                words=combine_words(texts) if stream.options.words else [],
                stable_words=stable_words,
            )
        )


class SegmentStream:
    """The state of a stream between two steps.

    Its memory is bounded by the window: of the utterance that is being spoken, of the turn so far, and of
    each awaited final text, whose number the text reader bounds.
    """

    def __init__(
        self, track: StreamSegmenter, options: AsrOptions, reading: ReadOptions, *, longest_ms: int
    ) -> None:
        """Start silent."""
        self.identity = object()
        """The same for all copies, and for no other stream."""
        self.track = track
        self.options = options
        self.reading = reading
        self.utterance: OpenUtterance | None = None
        self.turn = TurnAudio(min(options.join_ms, longest_ms))
        """Earlier utterances of the turn, with which the next one is read."""
        self.pending_events: list[AsrEvent | PendingText] = []
        self.read: list[RecognizedText] = []
        """Texts that the next reply reports."""
        self._said: dict[int, str] = {}  # the texts of the turn, by utterance

    def fork(self) -> SegmentStream:
        """Return an independent copy."""
        twin = copy.copy(self)
        twin.track = self.track.fork()
        twin.utterance = self.utterance.fork() if self.utterance else None
        twin.pending_events = list(self.pending_events)
        twin.read = []
        twin._said = dict(self._said)  # noqa: SLF001 - same class
        return twin

    @property
    def awaited(self) -> list[PendingText]:
        """Final texts that are not there yet."""
        return [item for item in self.pending_events if isinstance(item, PendingText)]

    def turn_over(self) -> None:
        """Join nothing that follows to what was said before."""
        self.turn = self.turn.closed()
        if self.utterance is not None:
            self.utterance.forget_early()

    def take_events(self) -> list[AsrEvent]:
        """The events that are due.

        Raises:
            ParleyError: a final text could not be read.
        """
        return take_ready_events(self.pending_events, self._poll)

    def _poll(self, pending: PendingText) -> list[AsrEvent] | None:
        found = pending.poll(
            lambda joined: [self._said.get(at, "") for at in range(joined.first, pending.number)]
        )
        if found is None:
            return None
        events, read = found
        self.read += read
        for event in events:
            if isinstance(event, TranscriptEvent):
                self._remember(event, pending.revised_texts)
        return events

    def _remember(self, event: TranscriptEvent, revised_texts: Sequence[str]) -> None:
        if not event.text:
            self.turn = self.turn.without(event.utterance)
        self._said |= dict(enumerate([*revised_texts, event.text], event.utterance - len(revised_texts)))
        oldest = self.turn.pieces[0].utterance if self.turn.pieces else event.utterance
        self._said = {at: text for at, text in self._said.items() if at >= oldest}
