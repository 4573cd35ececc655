"""What every ASR rail does with the pieces of audio of an execution, before it recognises anything."""

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
from parley.asr.pipeline.segmentation import PER_MS, Detector, StreamSegmenter, detect
from parley.errors import InvalidMessageError, ParleyError


class TrackedStream(Protocol):
    """A stream of any rail."""

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
    """This piece is not of the turn of what was said before."""
    last: bool = False
    """The stream ends with this piece: what is not in its reply is never told."""


@dataclass(frozen=True)
class ChunkResult(Generic[StreamT]):
    """What became of a chunk."""

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
        """Free what a stream holds beside its own memory; nobody will use it again."""
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
        """The answer to the chunk; the times are those of the calls that served it."""
        return AsrReply(
            events=events,
            speech_probability=round(float(self.probabilities.max(initial=0.0)), 4),
            stream_ms=self.stream.track.received // PER_MS,
            vad_ms=vad_ms if len(self.windows) else 0.0,
            encoder_ms=encoder_ms,
            decoder_ms=decoder_ms,
            batch=batch,
        )


def run_vad(
    chunks: Sequence[ChunkRequest[StreamT]], detector: Detector, clock: Callable[[], float]
) -> tuple[list[PendingChunk[StreamT]], float]:
    """Give every stream its audio, and ask for voice activity: one call for all of them.

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
    """A duration as replies tell it."""
    return round(seconds * 1000, 3)


MAX_PARTIAL_INTERVAL_MS = 60_000


def check_options(options: AsrOptions) -> None:
    """Refuse options that no stream can work with.

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
    untold: list[AsrEvent | LateT], look: Callable[[LateT], list[AsrEvent] | None]
) -> list[AsrEvent]:
    """Remove and return what can be told now: everything up to the first text that is not there yet.

    Args:
        untold: in the order in which it is told.
        look: the events that a text has become; None: it is not there.
    """
    events: list[AsrEvent] = []
    while untold:
        item = untold[0]
        if isinstance(item, _EVENTS):
            events.append(item)
        else:
            ready = look(item)
            if ready is None:
                break
            events += ready
        del untold[0]
    return events
