"""One turn at an endpoint of each stage: an utterance, a request, or a question in a call.

All times are taken on this side, by one clock, when an endpoint hands over what has come. A turn that fails
has a reason instead of figures; none is left out.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field

import numpy as np
from harness.recordings import Recording
from harness.stats import spoken_words, word_errors

from parley.timeouts import cancel_all, is_set_within
from parley_client.audio.files import speech_span
from parley_client.audio.microphone import PacedMicrophone, SpokenClip
from stages.protocols import (
    RATE,
    Agent,
    AnswerEnded,
    CallLine,
    Delta,
    EndpointError,
    LanguageModel,
    Prompt,
    Recognizer,
    Sound,
    SpeechStream,
    Usage,
    Voice,
)

CHUNK_MS = 32
"""Of every microphone."""
_LEAD_S = 0.3
"""Of silence before an utterance, as on a telephone."""


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
    """By name (:data:`stages.results.FIGURES`), in the unit that the name ends with."""
    failure: str = ""
    """A short code where the turn failed."""
    words: tuple[int, int] | None = None
    """Errors and words of the utterance; None: nothing was to be recognised."""
    late_ms: float | None = None
    """By how much the latest chunk of audio left after its time; None: the turn has no microphone."""
    text: str = ""
    """What was understood, or written."""


async def recognize(endpoint: Recognizer, utterance: Recording, patience: Patience) -> Turn:
    """Speak an utterance in real time, and read its texts.

    Silence goes before and after it, as from a microphone that stays open, so the time to the final text
    includes the endpoint's own wait for the end of speech. An endpoint that does not stream gets the
    utterance alone, when its last sample has been spoken: the end of speech is given to it, without any wait.
    """
    hearing = _Hearing(utterance, patience, streams=endpoint.streams)
    limit_s = patience.turn_s + len(utterance.samples) / RATE
    failure = ""
    try:
        async with asyncio.timeout(limit_s), endpoint.open() as stream:
            await hearing.run(stream)
    except TimeoutError:
        failure = "timeout"
    except EndpointError as error:
        failure = str(error)
    return hearing.result(failure)


class _Hearing:
    """Speaks one utterance, and collects what is understood of it."""

    def __init__(self, utterance: Recording, patience: Patience, *, streams: bool) -> None:
        self._utterance = utterance
        self._patience = patience
        self._streams = streams
        self._finals: list[tuple[float, str]] = []
        self._first_s: float | None = None
        self._has_final = asyncio.Event()
        self._microphone: PacedMicrophone | None = None
        self._spoken = SpokenClip(utterance.samples)

    async def run(self, stream: SpeechStream) -> None:
        """Raises EndpointError: the endpoint failed."""
        self._microphone = microphone = PacedMicrophone(stream.send, chunk_ms=CHUNK_MS)
        reading = asyncio.create_task(self._read(stream))
        sending = asyncio.create_task(microphone.run())
        speaking = asyncio.create_task(self._speak(microphone))
        try:
            await first_to_end(speaking, sending, reading)
            if reading.done():
                raise EndpointError("ended early")
            await cancel_all([sending])
            await stream.end()
            await reading
        finally:
            await cancel_all([reading, sending, speaking])

    async def _speak(self, microphone: PacedMicrophone) -> None:
        """Speak; after the end of speech wait for the final texts."""
        if self._streams:
            await asyncio.sleep(_LEAD_S)
        self._spoken = microphone.speak(self._utterance.samples)
        await self._spoken.ended.wait()
        if not self._streams:
            return
        self._has_final.clear()
        limit_s = self._patience.tail_s
        while await is_set_within(self._has_final, limit_s):
            self._has_final.clear()
            limit_s = self._patience.settle_s

    async def _read(self, stream: SpeechStream) -> None:
        async for text in stream:
            now = time.perf_counter()
            if not text.text.strip():
                continue
            if self._first_s is None:
                self._first_s = now
            if text.is_final:
                self._finals.append((now, text.text.strip()))
                self._has_final.set()

    def result(self, failure: str) -> Turn:
        """What was measured; where it failed every word counts as an error."""
        late_ms = 1000 * self._microphone.worst_late_s if self._microphone else None
        said = spoken_words(self._utterance.text)
        if failure or not self._finals:
            return Turn(failure=failure or "no text", words=(len(said), len(said)), late_ms=late_ms)
        text = " ".join(text for _, text in self._finals)
        figures = {"final_ms": 1000 * (self._finals[-1][0] - self._spoken.ended_s)}
        if self._streams and self._first_s is not None:
            figures["first_partial_ms"] = 1000 * (self._first_s - self._spoken.began_s)
        errors = word_errors(said, spoken_words(text))
        return Turn(figures, words=(errors, len(said)), late_ms=late_ms, text=text)


async def answer(endpoint: LanguageModel, prompt: Prompt, patience: Patience) -> Turn:
    """Ask a language model, and read its answer to the end.

    Tokens are counted by the endpoint. One that does not count them is taken to send one with each piece.
    """
    began = time.perf_counter()
    came: list[float] = []
    text, tokens = "", 0
    try:
        async with asyncio.timeout(patience.turn_s), aclosing(endpoint(prompt)) as events:
            async for event in events:
                match event:
                    case Delta():
                        came.append(time.perf_counter())
                        text += event.text
                    case Usage():
                        tokens = event.tokens
    except TimeoutError:
        return Turn(failure="timeout", text=text)
    except EndpointError as error:
        return Turn(failure=str(error), text=text)
    if not came:
        return Turn(failure="no text")
    figures = {"first_token_ms": 1000 * (came[0] - began)}
    further = (tokens or len(came)) - 1
    if further > 0 and came[-1] > came[0]:
        figures["tokens_per_s"] = further / (came[-1] - came[0])
    return Turn(figures, text=text)


async def speak(endpoint: Voice, text: str, patience: Patience) -> Turn:
    """Let a voice speak a text, and take its audio to the end."""
    began = time.perf_counter()
    came: list[Arrival] = []
    try:
        async with asyncio.timeout(patience.turn_s), aclosing(endpoint(text)) as sounds:
            came += [Arrival(time.perf_counter(), sound) async for sound in sounds if len(sound.samples)]
    except TimeoutError:
        return Turn(failure="timeout")
    except EndpointError as error:
        return Turn(failure=str(error))
    ended = time.perf_counter()
    audible_s = first_audible_s(came)
    if audible_s is None:
        return Turn(failure="silence" if came else "no audio")
    length_s = sum(len(one.sound.samples) / one.sound.rate for one in came)
    return Turn(
        {
            "first_audio_ms": 1000 * (came[0].at_s - began),
            "first_audible_ms": 1000 * (audible_s - began),
            "real_time_factor": (ended - began) / length_s,
        }
    )


@dataclass(frozen=True)
class Arrival:
    """A piece of speech, and when it came (seconds)."""

    at_s: float
    sound: Sound


def first_audible_s(came: Sequence[Arrival]) -> float | None:
    """When a player that begins with the first piece plays the first loud sample; None: there is none.

    Loud is what is above 1 % of the speech's peak. The player waits where a piece has not come yet.
    """
    samples = np.concatenate([one.sound.samples for one in came]) if came else np.zeros(0, np.int16)
    if not samples.any():
        return None
    first, _ = speech_span(samples)
    plays_s = came[0].at_s
    for one in came:
        plays_s = max(plays_s, one.at_s)
        if first < len(one.sound.samples):
            return plays_s + first / one.sound.rate
        first -= len(one.sound.samples)
        plays_s += len(one.sound.samples) / one.sound.rate
    return None


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
            await cancel_all([asking, sending, listening])

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


async def first_to_end(*tasks: asyncio.Task[None]) -> None:
    """Wait until one of the tasks has ended; raises what it failed with."""
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
