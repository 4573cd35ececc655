"""The parts of a step that all recognition pipelines share: requests, voice activity, results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from parley.asr.messages import (
    AsrEvent,
    AsrFallbackEvent,
    AsrOptions,
    AsrReply,
    OnsetEvent,
    OnsetLostEvent,
    SpeechStartedEvent,
    SpeechStoppedEvent,
    TranscriptEvent,
)
from parley.asr.segmenter.segmentation import PER_MS, Detector, StreamSegmenter, detect
from parley.errors import InvalidMessageError, ParleyError


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


MAX_PARTIAL_INTERVAL_MS = 60_000


def check_options(options: AsrOptions) -> None:
    """Refuse options out of range.

    Raises:
        InvalidMessageError: the interval is out of range.
    """
    if not 0 <= options.partial_interval_ms <= MAX_PARTIAL_INTERVAL_MS:
        raise InvalidMessageError(
            f"partial_interval_ms is {options.partial_interval_ms}; it must be 0 to {MAX_PARTIAL_INTERVAL_MS}"
        )


LateT = TypeVar("LateT")
_EVENTS = (
    OnsetEvent,
    OnsetLostEvent,
    SpeechStartedEvent,
    SpeechStoppedEvent,
    TranscriptEvent,
    AsrFallbackEvent,
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
