"""What is still to be told of a stream: events, and between them texts that are on their way."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from parley.asr.messages import (
    AsrEvent,
    AsrFallbackEvent,
    OnsetEvent,
    OnsetLostEvent,
    SpeechStartedEvent,
    SpeechStoppedEvent,
    TranscriptEvent,
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


def take_ready(
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
