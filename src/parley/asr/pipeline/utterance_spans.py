"""Spans of final texts: from the chunk of audio that ends an utterance to its text.

Chunks of audio have none: a stream has a dozen to fifty of them in a second.
"""

from __future__ import annotations

from typing import Protocol

from parley.asr.messages import AsrReply, SpeechStartedEvent, SpeechStoppedEvent, TranscriptEvent
from parley.tracing import NO_TRACE, Attributes, Trace


class BeginSpan(Protocol):
    """Begins spans of a model. Apart because :class:`parley.triton.model_traces.ModelTraces` is above."""

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


def no_span(
    operation: str,
    traceparent: str,
    attributes: Attributes | None = None,
    *,
    start_s: float | None = None,
) -> Trace:
    """A :class:`BeginSpan` where there are no traces."""
    del operation, traceparent, attributes, start_s
    return NO_TRACE


class UtteranceSpans:
    """The spans of one stream.

    Args:
        traceparent: span above them; empty: nothing is recorded.
    """

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
