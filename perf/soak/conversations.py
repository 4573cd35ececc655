"""Conversations of the soak, directly and through the gateway, each about its own script."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import numpy as np
from harness.stats import spoken_words
from numpy.typing import NDArray
from rich.console import Console

from parley.errors import AsrFallbackError, ParleyError, TtsFallbackError
from parley.launcher.options import ROOT
from parley.protocol import (
    Closed,
    ErrorEvent,
    Interrupted,
    ResponseDone,
    ResponseText,
    SamplingOptions,
    Transcript,
)
from parley_client import NO_RETRY, connect
from parley_client.audio.files import read_speech
from parley_client.audio.microphone import PacedMicrophone
from parley_client.call import Call
from parley_client.events import AgentAudio, Reconnected
from soak.scripts import LIKE, LostTurnError, Script, Scripts, UnexpectedAnswerError, likeness
from soak.sessions import FULL, Session, Target, drop, opening_code

ANSWER_S = 25.0
"""More than the agent's own deadline for its language model."""
_RATE = 22_050
_FULL = (FULL, "too_many_calls")
_SILENCE = 32_000  # samples of 16 kHz: long enough for the end of the turn
_INTERRUPTING, _TYPING = 0.2, 0.3
_GIVE_UP_S = 8.0
_FALLBACKS = (AsrFallbackError.code, TtsFallbackError.code)
_RECORDINGS = ROOT / "tests/data/conversation"
_USERS = ("01", "02", "08", "09", "10", "11", "13", "14")
_COLOURS = ("amber", "crimson", "green", "indigo", "orange", "purple", "silver", "yellow")
_THINGS = ("bottles", "candles", "doors", "elephants", "flowers", "guitars", "houses", "islands")
_PLACES = ("by the river", "in Lisbon", "on the roof", "at noon", "for Martin", "under water", "in June")
_SUMS = (
    *("three plus four", "six plus four", "ten plus three", "nine plus nine"),
    *("eight plus six", "nine plus six", "one plus eight", "two plus two"),
)


@dataclass
class Heard:
    """What a call has received so far."""

    texts: dict[str, str] = field(default_factory=dict)
    """By response, in the order of their first piece."""
    speech: dict[str, list[NDArray[np.int16]]] = field(default_factory=dict)
    over: set[str] = field(default_factory=set)
    """Responses that are complete or interrupted."""
    finals: list[str] = field(default_factory=list)
    """Transcripts."""
    errors: list[str] = field(default_factory=list)
    """Codes of what a turn may be lost by."""
    fallbacks: list[str] = field(default_factory=list)
    """Codes of what was late or away, and replaced: the turn goes on."""
    closed: str = ""
    failure: Exception | None = None
    """What broke the call off."""
    is_over: bool = False
    """Nothing more will come."""
    moves: int = 0
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def on_event(self, event: object) -> None:
        """Take in one event of either protocol."""
        async with self.changed:
            match event:
                case ResponseText():
                    self.texts[event.response_id] = self.texts.get(event.response_id, "") + event.text
                case AgentAudio():
                    self.speech.setdefault(event.response_id, []).append(event.samples)
                case ResponseDone() | Interrupted():
                    self.over.add(event.response_id)
                case Transcript(is_final=True):
                    self.finals.append(event.text)
                case ErrorEvent(code=code):
                    (self.fallbacks if code in _FALLBACKS else self.errors).append(code)
                case Closed():
                    self.closed = event.reason
                case Reconnected():
                    self.moves += 1
                case _:
                    return
            self.changed.notify_all()

    def samples_of(self, response: str) -> NDArray[np.int16]:
        """Shape [n]."""
        return np.concatenate([np.zeros(0, np.int16), *self.speech.get(response, [])])

    async def response_after(self, known: set[str]) -> str:
        """The first complete response that is not among ``known``.

        Raises:
            LostTurnError: there is none in time, or an error came instead.
        """
        errors = len(self.errors)

        def found() -> list[str]:
            return [response for response in (*self.texts, *self.speech) if response not in known]

        def done() -> bool:
            return self.is_over or any(response in self.over for response in found())

        try:
            async with asyncio.timeout(ANSWER_S), self.changed:
                await self.changed.wait_for(done)
        except TimeoutError as error:
            raise LostTurnError(
                f"no response within {ANSWER_S:g} s; errors {self.errors[errors:]}"
            ) from error
        if self.failure is not None:
            raise self.failure
        if self.is_over and not any(response in self.over for response in found()):
            raise UnexpectedAnswerError(f"the call ended by itself: {self.closed or 'without closed'}")
        if new := self.errors[errors:]:
            raise LostTurnError(f"errors {new}")
        return next(response for response in found() if response in self.over)


@asynccontextmanager
async def _call(target: Target, *, is_gateway: bool = False) -> AsyncIterator[tuple[Call, Heard]]:
    """A call, and what it hears as long as the block runs.

    Directly a call goes on when it loses its server. Through the gateway it does not: the gateway does that.
    """
    heard = Heard()
    async with connect(
        target.gateway if is_gateway else target.address,
        greeting="",
        output_sample_rate=_RATE,
        sampling=SamplingOptions(temperature=0.0),
        resume=not is_gateway,
        retry=NO_RETRY if is_gateway else None,
    ) as call:

        async def listen() -> None:
            try:
                async for event in call:
                    await heard.on_event(event)
            except ParleyError as error:
                heard.failure = error
            finally:
                async with heard.changed:
                    heard.is_over = True
                    heard.changed.notify_all()

        task = asyncio.create_task(listen())
        try:
            yield call, heard
        finally:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()


async def learn(target: Target, console: Console) -> Scripts:
    """Hold one call after the other, and keep what the agent says as the reference.

    Raises:
        UnexpectedAnswerError: two texts sound the same, or an answer of the language model is not the same
            twice: it would identify no call.
    """
    manifest = json.loads((_RECORDINGS / "manifest.json").read_text())
    texts = {each["file"][:2]: each["text"] for each in manifest}
    scripts = []
    for number, user in enumerate(_USERS):
        file = next(_RECORDINGS.glob(f"{user}-*.wav"))
        place = _PLACES[number % len(_PLACES)]
        script = Script(
            f"There are {_COLOURS[number]} {_THINGS[number]} {place}.",
            read_speech(file),
            spoken_words(texts[user]),
            f"what is {_SUMS[number]}",
        )
        for _ in range(2):
            speech, spoken = await _say_and_ask(target, script.text, texts[user])
            _, typed = await _say_and_ask(target, script.text, script.sum)
            if script.typed_answer and (spoken, typed) != (script.spoken_answer, script.typed_answer):
                raise UnexpectedAnswerError(f"{texts[user]!r} or {script.sum!r} is not always answered alike")
            script = replace(script, speech=speech, spoken_answer=spoken, typed_answer=typed)
        console.print(
            f"{texts[user]!r}: {script.spoken_answer!r}; {script.sum!r}: {script.typed_answer!r}",
            markup=False,
        )
        scripts.append(script)
    for one in scripts:
        for other in scripts:
            if one is not other and likeness(one.speech, other.speech) >= LIKE:
                raise UnexpectedAnswerError(f"{one.text!r} and {other.text!r} sound the same")
    return Scripts(scripts)


async def _say_and_ask(target: Target, text: str, question: str) -> tuple[NDArray[np.int16], str]:
    """How a text is spoken, shape [n], and the answer to a question that is typed after it."""
    async with _call(target) as (call, heard):
        call.say(text, remember=False)
        said = await heard.response_after(set())
        call.send_text(question)
        answer = heard.texts.get(await heard.response_after({said}), "").strip()
        await call.hang_up()
    return heard.samples_of(said), answer


async def _converse(
    chance: Callable[[], float], call: Call, heard: Heard, scripts: Scripts, script: Script
) -> str:
    """One text and one question; returns the outcome."""
    call.say(script.text, remember=False)
    said = await heard.response_after(set())
    scripts.check_text(script, heard.texts.get(said, "").strip())
    speech = heard.samples_of(said)
    scripts.check_speech(script, speech)
    if chance() < _INTERRUPTING:
        await asyncio.sleep(chance() * len(speech) / _RATE)
        call.interrupt()
    else:
        await asyncio.sleep(len(speech) / _RATE)
    wrong = 0
    if chance() < _TYPING:
        call.send_text(script.sum)
        answered = heard.texts.get(await heard.response_after({said}), "").strip()
        scripts.check_answer(script.typed_answer, answered)
    else:
        await _speak(call, script)
        answered = heard.texts.get(await heard.response_after({said}), "").strip()
        wrong = scripts.check_transcript(script, " ".join(heard.finals))
        if not wrong:
            scripts.check_answer(script.spoken_answer, answered)
    await call.hang_up()
    remarks = ("misheard" if wrong else "", "moved" if heard.moves else "", *sorted(set(heard.fallbacks)))
    return ", ".join(("answered", *filter(None, remarks)))


async def _speak(call: Call, script: Script) -> None:
    """The question in real time, and two seconds of silence behind it."""
    microphone = PacedMicrophone(call.send_audio)
    microphone.restart()
    clip = microphone.speak(np.concatenate([script.recording, np.zeros(_SILENCE, np.int16)]))
    sending = asyncio.create_task(microphone.run())
    ended = asyncio.create_task(clip.ended.wait())
    try:
        await asyncio.wait({sending, ended}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({sending}, timeout=_SILENCE / 16_000)
    finally:
        sending.cancel()
        ended.cancel()
        await asyncio.wait({sending, ended})
    if not sending.cancelled():
        sending.result()


async def _hold(target: Target, *, is_gateway: bool) -> str:
    scripts = target.scripts
    if scripts is None:
        raise ValueError("a conversation needs scripts")
    try:
        async with (
            scripts.take(target.random) as script,
            _call(target, is_gateway=is_gateway) as (call, heard),
        ):
            return await _converse(target.random.random, call, heard, scripts, script)
    except ParleyError as error:
        return opening_code(error, *_FULL)


async def _given_up(target: Target, *, is_gateway: bool) -> str:
    return await drop(_hold(target, is_gateway=is_gateway), _GIVE_UP_S * target.random.random(), "given up")


async def conversation(target: Target) -> str:
    """A call by gRPC: a text, an interruption or none, a question, its answer."""
    return await _hold(target, is_gateway=False)


async def conversation_given_up(target: Target) -> str:
    """The same, dropped at a random moment."""
    return await _given_up(target, is_gateway=False)


async def gateway_conversation(target: Target) -> str:
    """The same as :func:`conversation`, through the gateway."""
    return await _hold(target, is_gateway=True)


async def gateway_conversation_given_up(target: Target) -> str:
    """The same as :func:`conversation_given_up`, through the gateway."""
    return await _given_up(target, is_gateway=True)


SESSIONS: dict[Session, int] = {
    conversation: 8,
    conversation_given_up: 3,
    gateway_conversation: 8,
    gateway_conversation_given_up: 3,
}
"""How often each kind is held, relative to the others."""
