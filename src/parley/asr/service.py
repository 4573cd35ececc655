"""The streams of a recogniser, served by correlation id: all requests of an execution in one step.

A pipeline recognises the streams; :func:`run_vad`, :func:`take_ready_events` and the requests and results are
what all pipelines share.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley.asr.messages import (
    AsrEvent,
    AsrFallbackEvent,
    AsrOptions,
    AsrReply,
    AsrRequest,
    OnsetEvent,
    OnsetLostEvent,
    SpeechStartedEvent,
    SpeechStoppedEvent,
    TranscriptEvent,
)
from parley.asr.segmenter.segmentation import PER_MS, Detector, StreamSegmenter, detect
from parley.errors import (
    InvalidAudioError,
    InvalidMessageError,
    ParleyError,
    SessionNotFoundError,
    TooManySessionsError,
)
from parley.inference import Tensor, decode_request
from parley.languages import understood_language
from parley.tracing import NO_TRACE, Attributes, Trace

MAX_PARTIAL_INTERVAL_MS = 60_000
_EVENTS = (
    OnsetEvent,
    OnsetLostEvent,
    SpeechStartedEvent,
    SpeechStoppedEvent,
    TranscriptEvent,
    AsrFallbackEvent,
)
_decoder = msgspec.json.Decoder(AsrRequest)
_DEFAULTS = AsrRequest()
LateT = TypeVar("LateT")


class TrackedStream(Protocol):
    """A stream of any pipeline."""

    track: StreamSegmenter

    def fork(self) -> Self:
        """Return an independent copy, so that a step can be tried and dropped if a model fails."""
        ...


StreamT = TypeVar("StreamT", bound=TrackedStream)


@dataclass(frozen=True)
class ChunkRequest(Generic[StreamT]):
    """A piece of audio for one stream; a stream has at most one in a step."""

    stream: StreamT
    audio: NDArray[np.int16]
    flush: bool = False
    """End the utterance with this piece."""
    turn_over: bool = False
    """A new turn begins with this piece."""
    last: bool = False
    """The stream ends with this piece: events that are not in its reply are lost."""


@dataclass(frozen=True)
class ChunkResult(Generic[StreamT]):
    """The outcome of a chunk."""

    stream: StreamT
    """The stream after the chunk; the one before it is unchanged."""
    reply: AsrReply


class RecognizerPipeline(Protocol[StreamT]):
    """A way from audio to transcripts, for many streams at once."""

    def new_stream(self, options: AsrOptions) -> StreamT:
        """Begin a stream.

        Raises:
            InvalidInputError: the options are out of range.
        """
        ...

    def step(self, chunks: Sequence[ChunkRequest[StreamT]]) -> list[ChunkResult[StreamT] | ParleyError]:
        """Serve all chunks together; one that fails leaves its stream as it was."""
        ...

    def release(self, stream: StreamT) -> None:
        """Free what a stream holds beside its own memory; it is not used again."""
        ...


@dataclass
class PendingChunk(Generic[StreamT]):
    """A chunk on its way through a step."""

    chunk: ChunkRequest[StreamT]
    stream: StreamT
    """A fork that the step works on."""
    windows: NDArray[np.float32]
    probabilities: NDArray[np.float32]
    error: ParleyError | None = None

    def reply(
        self, events: list[AsrEvent], *, vad_ms: float, encoder_ms: float, decoder_ms: float, batch: int
    ) -> AsrReply:
        """The reply to the chunk; the times are those of the calls that served it."""
        return AsrReply(
            events=events,
            stream_ms=self.stream.track.received // PER_MS,
            vad_ms=vad_ms if len(self.windows) else 0.0,
            encoder_ms=encoder_ms,
            decoder_ms=decoder_ms,
            batch=batch,
        )


def run_vad(
    chunks: Sequence[ChunkRequest[StreamT]], detector: Detector, clock: Callable[[], float]
) -> tuple[list[PendingChunk[StreamT]], float]:
    """Give every stream its audio, and detect voice activity: one call for all of them.

    Args:
        chunks: at most one of each stream.
        detector: the network; if it fails, so do the chunks that needed it.
        clock: seconds.

    Returns:
        The work, with ``probabilities`` or ``error`` set, and the time of the call (milliseconds).
    """
    work: list[PendingChunk[StreamT]] = []
    for chunk in chunks:
        stream = chunk.stream.fork()
        windows = stream.track.accept(chunk.audio, flush=chunk.flush)
        work.append(PendingChunk(chunk, stream, windows, np.zeros(0, np.float32)))
    needing = [item for item in work if len(item.windows)]
    if not needing:
        return work, 0.0
    began = clock()
    try:
        scored = detect([item.stream.track for item in needing], [item.windows for item in needing], detector)
    except ParleyError as error:
        for item in needing:
            item.error = error
    else:
        for item, probabilities in zip(needing, scored, strict=True):
            item.probabilities = probabilities
    return work, milliseconds(clock() - began)


def milliseconds(seconds: float) -> float:
    """A duration as replies report it."""
    return round(seconds * 1000, 3)


def check_options(options: AsrOptions) -> None:
    """Refuse options out of range.

    Raises:
        InvalidMessageError: the interval is out of range.
    """
    if not 0 <= options.partial_interval_ms <= MAX_PARTIAL_INTERVAL_MS:
        raise InvalidMessageError(
            f"partial_interval_ms is {options.partial_interval_ms}; it must be 0 to {MAX_PARTIAL_INTERVAL_MS}"
        )


def take_ready_events(
    pending_events: list[AsrEvent | LateT], look: Callable[[LateT], list[AsrEvent] | None]
) -> list[AsrEvent]:
    """Remove and return the events that are due: all before the first missing text.

    Args:
        pending_events: events in their order.
        look: the events that a text has become; None: it is not there.
    """
    events: list[AsrEvent] = []
    while pending_events:
        item = pending_events[0]
        if isinstance(item, _EVENTS):
            events.append(item)
        else:
            ready = look(item)
            if ready is None:
                break
            events += ready
        del pending_events[0]
    return events


class BeginSpan(Protocol):
    """Begins spans of a model."""

    def __call__(
        self,
        operation: str,
        traceparent: str,
        attributes: Attributes | None = None,
        *,
        start_s: float | None = None,
    ) -> Trace:
        """Begin a span; ``start_s``: seconds of the monotonic clock."""
        ...


class UtteranceSpans:
    """The spans of one stream: from the chunk that ends an utterance to its text. Chunks have none."""

    def __init__(self, begin: BeginSpan, traceparent: str) -> None:
        self._begin = begin
        self._traceparent = traceparent
        self._started_ms = 0
        self._open: dict[int, Trace] = {}  # by the number of the utterance

    def on_reply(self, reply: AsrReply, began_s: float) -> None:
        """Record a reply to a chunk; ``began_s``: when its step began, in seconds of the monotonic clock."""
        if not self._traceparent:
            return
        for event in reply.events:
            if isinstance(event, SpeechStartedEvent):
                self._started_ms = event.at_ms
            elif isinstance(event, SpeechStoppedEvent):
                length = {
                    "parley.utterance": event.utterance,
                    "parley.audio_ms": event.at_ms - self._started_ms,
                }
                span = self._begin("transcribe", self._traceparent, length, start_s=began_s)
                self._open[event.utterance] = span
            elif isinstance(event, TranscriptEvent) and event.is_final:
                span = self._open.pop(event.utterance, NO_TRACE)
                span.set({"parley.words": len(event.text.split())})
                span.end()

    def close(self) -> None:
        """The stream has ended: texts that did not come are cancelled."""
        for span in self._open.values():
            span.set({"parley.cancelled": True})
            span.end()
        self._open.clear()


@dataclass(frozen=True)
class StreamRequest:
    """One request as Triton hands it over."""

    key: str
    """Correlation id of the sequence."""
    start: bool
    end: bool
    audio: Tensor
    """i16 ``[n]`` or ``[1, n]``: 16 kHz mono."""
    message: Tensor | bytes
    """JSON of :class:`parley.asr.messages.AsrRequest`; empty: its defaults."""


class RecognitionService(Generic[StreamT]):
    """Keeps the streams and serves all requests of an execution in one step.

    A request that cannot be served fails alone, and its stream stays as it was.
    """

    def __init__(
        self,
        pipeline: RecognizerPipeline[StreamT],
        sessions: SessionTable[StreamT],
        *,
        languages: Sequence[str],
        max_chunk_ms: int,
        begin_span: BeginSpan,
    ) -> None:
        """Serve the streams of a pipeline."""
        self._begin_span = begin_span
        self._pipeline = pipeline
        self._sessions = sessions
        self._languages = tuple(languages)
        self._max_chunk = max_chunk_ms * PER_MS
        self._lock = threading.Lock()

    def serve(self, requests: Sequence[StreamRequest]) -> list[AsrReply | ParleyError]:
        """Answer each request; at most one per stream."""
        with self._lock:
            began_s = time.monotonic()
            self._sweep()
            admitted = [self._admit(request) for request in requests]
            results = iter(
                self._pipeline.step([chunk for chunk in admitted if isinstance(chunk, ChunkRequest)])
            )
            replies: list[AsrReply | ParleyError] = []
            for request, chunk in zip(requests, admitted, strict=True):
                result = chunk if isinstance(chunk, ParleyError) else next(results)
                if isinstance(result, ChunkResult):
                    self._sessions.update(request.key, result.stream).on_reply(result.reply, began_s)
                    reply = result.reply
                    if request.start:
                        reply = msgspec.structs.replace(reply, languages=list(self._languages))
                    replies.append(reply)
                else:
                    replies.append(result)
                if request.end:
                    self._close(request.key)
            return replies

    def sweep(self) -> int:
        """Drop the streams that are idle, and return how many; may be called from any thread."""
        with self._lock:
            return self._sweep()

    def _sweep(self) -> int:
        idle = self._sessions.sweep()
        for entry in idle:
            self._release(entry)
        return len(idle)

    def _close(self, key: str) -> None:
        entry = self._sessions.close(key)
        if entry is not None:
            self._release(entry)

    def _release(self, entry: SessionEntry[StreamT]) -> None:
        entry.spans.close()
        self._pipeline.release(entry.stream)

    def _admit(self, request: StreamRequest) -> ChunkRequest[StreamT] | ParleyError:
        try:
            if request.start:
                self._close(request.key)
            message = decode_request(request.message, _decoder, _DEFAULTS)
            audio = self._read_audio(request.audio)
            if request.start:
                options = message.options or AsrOptions()
                spans = UtteranceSpans(self._begin_span, options.traceparent)
                self._sessions.open(request.key, self._new_stream(options), spans)
            return ChunkRequest(
                self._sessions.get(request.key),
                audio,
                flush=message.flush,
                turn_over=message.turn_over,
                last=request.end,
            )
        except ParleyError as error:
            return error

    def _new_stream(self, options: AsrOptions) -> StreamT:
        language = understood_language(options.language, self._languages)
        return self._pipeline.new_stream(msgspec.structs.replace(options, language=language))

    def _read_audio(self, audio: Tensor) -> Tensor:
        samples = audio.reshape(-1)
        if samples.dtype != np.int16:
            raise InvalidAudioError(f"audio is {samples.dtype}; it must be int16")
        if len(samples) > self._max_chunk:
            raise InvalidAudioError(
                f"{len(samples)} samples in one piece; at most {self._max_chunk} are taken"
            )
        return samples


@dataclass
class SessionEntry(Generic[StreamT]):
    """An open stream."""

    stream: StreamT
    spans: UtteranceSpans
    used_at: float


class SessionTable(Generic[StreamT]):
    """Streams by correlation id: bounded in number, and closed when idle.

    Calls must not overlap.
    """

    def __init__(self, limit: int, idle_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin empty; a stream is dropped after ``idle_s`` without a chunk."""
        self._limit = limit
        self._idle_s = idle_s
        self._clock = clock
        self._entries: dict[str, SessionEntry[StreamT]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def open(self, key: str, stream: StreamT, spans: UtteranceSpans) -> None:
        """Begin a stream under a key that no open stream has.

        Raises:
            TooManySessionsError: the table is full.
        """
        if len(self._entries) >= self._limit:
            raise TooManySessionsError(f"{self._limit} audio streams are open; no more are accepted")
        self._entries[key] = SessionEntry(stream, spans, self._clock())

    def get(self, key: str) -> StreamT:
        """The stream, which counts as used now.

        Raises:
            SessionNotFoundError: it was never opened, has ended, or was idle for too long.
        """
        entry = self._entries.get(key)
        if entry is None:
            raise SessionNotFoundError(f"audio stream {key} is not open: send START first")
        entry.used_at = self._clock()
        return entry.stream

    def update(self, key: str, stream: StreamT) -> UtteranceSpans:
        """Replace an open stream by its next state; returns its spans."""
        entry = self._entries[key]
        entry.stream = stream
        return entry.spans

    def close(self, key: str) -> SessionEntry[StreamT] | None:
        """End a stream and return it; unknown keys are not an error."""
        return self._entries.pop(key, None)

    def sweep(self) -> list[SessionEntry[StreamT]]:
        """Drop the streams that are idle, and return them."""
        before = self._clock() - self._idle_s
        idle = [key for key, entry in self._entries.items() if entry.used_at < before]
        return [self._entries.pop(key) for key in idle]
