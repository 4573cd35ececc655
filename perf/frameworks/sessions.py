"""Callers that talk to Pipecat pipelines side by side, and how long they wait."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import psutil
from pipecat.adapters.llm.schemas.tools_schema import ToolsSchema
from pipecat.frames.frames import TranscriptionFrame
from pipecat.metrics.metrics import TTFBMetricsData
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.services.llm_service import FunctionCallParams
from pipecat_call import Call, calling

PROMPT = "You are Parley, a friendly voice assistant. Keep answers short."
TURNS = (
    ("01-hello", "hello"),
    ("02-weather", "what's the weather in paris"),
    ("13-thank-you", "thank you"),
)
# Callers do not all speak at once: each begins, and goes on, after a random delay of at most this (seconds).
_PAUSE_S = 1.5
_TURN_S = 30.0

Services = tuple[FrameProcessor, FrameProcessor, FrameProcessor]


class NothingMeasuredError(RuntimeError):
    """A load has given no figure of some kind."""


@dataclass
class Waits:
    """What callers waited for; milliseconds, one figure per turn or request."""

    stt: list[float] = field(default_factory=list)
    """From the true end of speech to the final text, Pipecat's own 200 ms of silence included."""
    llm: list[float] = field(default_factory=list)
    """From the conversation to the first token."""
    tts: list[float] = field(default_factory=list)
    """From the first words to the first audio."""
    total: list[float] = field(default_factory=list)
    """From the true end of speech to the first audio that is heard."""
    wrong: int = 0
    """Turns that were misheard or not answered in time."""
    cpu: float = 0.0
    """Busy processors, of all there are, 0-1."""

    def check(self) -> None:
        """Check that there is at least one figure of each kind.

        Raises:
            NothingMeasuredError: there is none of some kind.
        """
        if lacking := [name for name in ("stt", "llm", "tts", "total") if not getattr(self, name)]:
            raise NothingMeasuredError(
                f"no figure for {', '.join(lacking)}; turns without a right answer: {self.wrong}"
            )

    def as_json(self) -> dict[str, Any]:
        """For another process."""
        return asdict(self)


async def get_weather(params: FunctionCallParams, city: str, day: str | None = None) -> None:  # noqa: ARG001
    """Get the weather in a city.

    Args:
        params: of the call.
        city: The name of the city.
        day: The day, if it is not now.
    """
    await params.result_callback({"temperature": 8, "sky": "foggy"})


async def run_level(make: Callable[[], Services], sessions: int, turns: int) -> Waits:
    """Let callers talk at once.

    Args:
        make: the services of a session: recogniser, language model, synthesizer.
        sessions: how many callers.
        turns: of each caller.

    Raises:
        NothingMeasuredError: no turn gave a figure of some kind.
    """
    waits = Waits()
    before = psutil.cpu_times()
    await asyncio.gather(
        *(_caller(make(), turns, random.Random(number), waits) for number in range(sessions))
    )
    after = psutil.cpu_times()
    total = sum(after) - sum(before)
    waits.cpu = 1 - (after.idle - before.idle) / total
    waits.check()
    return waits


async def _caller(services: Services, turns: int, rng: random.Random, waits: Waits) -> None:
    _, llm, tts = services
    async with calling(*services, ToolsSchema([get_weather]), wait_s=0.0) as call:
        for number in range(turns):
            await asyncio.sleep(rng.uniform(0.5, 0.5 + _PAUSE_S))
            clip, text = TURNS[number % len(TURNS)]
            await _turn(call, clip, text, waits)
        waits.llm += [1000 * value for value in call.pipeline.metrics(TTFBMetricsData, llm)]
        waits.tts += [1000 * value for value in call.pipeline.metrics(TTFBMetricsData, tts)]


async def _turn(call: Call, clip: str, text: str, waits: Waits) -> None:
    notes = call.pipeline.notes
    since, heard = len(notes.events), len(call.listener.heard_at)
    try:
        async with asyncio.timeout(_TURN_S):
            understood, _ = await call.ask(clip)
    except (TimeoutError, AssertionError):
        waits.wrong += 1
        return
    waits.wrong += understood != text
    ended = call.microphone.spoke_until
    finals = _times(notes.events[since:], notes.times[since:], TranscriptionFrame)
    audible = [time for time in call.listener.heard_at[heard:] if time > ended]
    if finals and audible:
        waits.stt.append(1000 * (finals[0] - ended))
        waits.total.append(1000 * (audible[0] - ended))


def _times(events: Sequence[Any], times: Sequence[float], kind: type) -> list[float]:
    return [time for event, time in zip(events, times, strict=True) if isinstance(event, kind)]
