"""What one turn at an endpoint measured, how long it may take, and how its tasks end.

All times are taken on this side, by one clock, when an endpoint hands over what has come. A turn that fails
has a reason instead of figures; none is left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

CHUNK_MS = 32
"""Of every microphone."""


@dataclass(frozen=True)
class Patience:
    """How long a turn waits (seconds)."""

    turn_s: float = 30.0
    """For all of a request, and for the answer of a call to begin or to end."""
    tail_s: float = 3.0
    """For a final text after the end of speech, before the stream is ended without one."""
    settle_s: float = 0.8
    """After such a text for another one: a pause inside an utterance gives several."""
    pause_s: float = 0.6
    """Between the end of an answer and the next turn of a call."""


@dataclass(frozen=True)
class Turn:
    """What one turn measured."""

    figures: Mapping[str, float] = field(default_factory=dict)
    """By name (:data:`stages.figures.FIGURES`), in the unit that the name ends with."""
    failure: str = ""
    """A short code where the turn failed."""
    words: tuple[int, int] | None = None
    """Errors and words of the utterance; None: nothing was to be recognised."""
    late_ms: float | None = None
    """By how much the latest chunk of audio left after its time; None: the turn has no microphone."""
    text: str = ""
    """What was understood, or written."""


async def is_set_within(event: asyncio.Event, limit_s: float) -> bool:
    """Whether an event is set in time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await event.wait()
    return event.is_set()


async def first_to_end(*tasks: asyncio.Task[None]) -> None:
    """Wait until one of the tasks has ended; raises what it failed with."""
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()


async def stop(*tasks: asyncio.Task[None]) -> None:
    """Cancel tasks, and wait for their ends; what they fail with now is a consequence of what ended them."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
