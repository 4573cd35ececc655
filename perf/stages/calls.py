"""Whole calls: a caller speaks in real time, listens to the answer, and goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack

from harness.recordings import Recording

from parley_client.audio.microphone import PacedMicrophone, SpokenClip
from stages.protocols import Agent, AnswerEnded, CallLine, EndpointError
from stages.requests import Arrival, first_audible_s
from stages.turns import CHUNK_MS, Patience, Turn, first_to_end, is_set_within, stop


async def call(endpoint: Agent, questions: Iterable[Recording], patience: Patience) -> list[Turn]:
    """Hold one call, and ask the questions in turn; one that breaks ends with a turn that failed."""
    caller = _Caller(patience)
    try:
        async with AsyncExitStack() as stack:
            async with asyncio.timeout(patience.turn_s):
                line = await stack.enter_async_context(endpoint.open())
            await caller.hold(line, questions)
    except TimeoutError:
        caller.turns.append(Turn(failure="timeout"))
    except EndpointError as error:
        caller.turns.append(Turn(failure=str(error), late_ms=caller.late_ms))
    return caller.turns


class _Caller:
    """One side of a call."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self.turns: list[Turn] = []
        self._microphone: PacedMicrophone | None = None
        self._came: list[Arrival] = []
        self._ended = asyncio.Event()
        self._sounds = asyncio.Event()

    @property
    def late_ms(self) -> float | None:
        """Of the latest chunk of the call so far."""
        return None if self._microphone is None else 1000 * self._microphone.worst_late_s

    async def hold(self, line: CallLine, questions: Iterable[Recording]) -> None:
        """Raises EndpointError: the call broke."""
        self._microphone = microphone = PacedMicrophone(line.send, chunk_ms=CHUNK_MS)
        sending = asyncio.create_task(microphone.run())
        listening = asyncio.create_task(self._listen(line))
        asking = asyncio.create_task(self._ask_all(microphone, questions))
        try:
            await first_to_end(asking, sending, listening)
            if not asking.done():
                raise EndpointError("hung up on")
        finally:
            await stop(asking, sending, listening)

    async def _ask_all(self, microphone: PacedMicrophone, questions: Iterable[Recording]) -> None:
        for question in questions:
            await asyncio.sleep(self._patience.pause_s)
            microphone.worst_late_s = 0.0
            self.turns.append(await self._ask(microphone, question))

    async def _ask(self, microphone: PacedMicrophone, question: Recording) -> Turn:
        self._came.clear()
        self._ended.clear()
        self._sounds.clear()
        spoken = microphone.speak(question.samples)
        await spoken.ended.wait()
        early = self._forget_early(spoken)
        if not await is_set_within(self._sounds, self._patience.turn_s):
            return Turn(failure="cut off" if early else "no answer", late_ms=self.late_ms)
        is_over = await is_set_within(self._ended, self._patience.turn_s)
        came = self._came[:]
        audible_s = first_audible_s(came)
        await self._hear_out(came)
        if early:
            return Turn(failure="cut off", late_ms=self.late_ms)
        if audible_s is None or not is_over:
            return Turn(failure="silence" if is_over else "no end", late_ms=self.late_ms)
        figures = {
            "call_first_audio_ms": 1000 * (came[0].at_s - spoken.ended_s),
            "call_first_audible_ms": 1000 * (audible_s - spoken.ended_s),
        }
        return Turn(figures, late_ms=self.late_ms)

    def _forget_early(self, spoken: SpokenClip) -> bool:
        """Drop what came before the end of speech, when an answer to a part of the question began."""
        early = [one for one in self._came if one.at_s < spoken.ended_s]
        del self._came[: len(early)]
        if not self._came:
            self._sounds.clear()
            self._ended.clear()
        return bool(early)

    async def _hear_out(self, came: Sequence[Arrival]) -> None:
        """Wait until a player that began with the first piece has played all of the answer."""
        length_s = sum(len(one.sound.samples) / one.sound.rate for one in came)
        left_s = came[0].at_s + length_s - time.perf_counter()
        await asyncio.sleep(min(max(0.0, left_s), self._patience.turn_s))

    async def _listen(self, line: CallLine) -> None:
        async for event in line:
            if isinstance(event, AnswerEnded):
                self._ended.set()
            elif len(event.samples):
                self._came.append(Arrival(time.perf_counter(), event))
                self._sounds.set()
