"""Conversations of the soak test, each with words and speech of its own, so that a mix-up is seen.

No two calls that are open at once share a script: what the agent is made to say, and what the user says. A
call compares the text, the samples, the transcript and the answer with those of its script, and, where they
differ, with those of all others.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Protocol

import numpy as np
from harness.stats import spoken_words, word_errors
from numpy.typing import NDArray
from rich.console import Console
from soak_callers import FULL, Session, Target, UnexpectedAnswerError, opening_code
from soak_gateway import RefusedVisitError, visit_socket
from websockets.exceptions import ConnectionClosed

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
    decode_event,
)
from parley_client import connect
from parley_client.audio.files import read_speech
from parley_client.audio.microphone import PacedMicrophone
from parley_client.call import Call
from parley_client.events import AgentAudio, Reconnected

ANSWER_S = 25.0
"""More than the agent's own deadline for its language model."""
_LIKE = 0.8
_FRAME = 512
_BANDS = (1, 3, 5, 8, 12, 17, 24, 34, 48, 70, 100)
_LATER = 3  # frames
_RATE = 22_050
_SILENCE = 32_000  # samples of 16 kHz: long enough for the end of the turn
_INTERRUPTING, _TYPING = 0.2, 0.3
_GIVE_UP_S = 8.0
_FALLBACKS = (AsrFallbackError.code, TtsFallbackError.code)
_NEEDED = ("response", "response_done", "interrupted", "transcript", "error", "closed")
_RECORDINGS = ROOT / "tests/data/conversation"
_USERS = ("01", "02", "08", "09", "10", "11", "13", "14")
_COLOURS = ("amber", "crimson", "green", "indigo", "orange", "purple", "silver", "yellow")
_THINGS = ("bottles", "candles", "doors", "elephants", "flowers", "guitars", "houses", "islands")
_PLACES = ("by the river", "in Lisbon", "on the roof", "at noon", "for Martin", "under water", "in June")
_SUMS = (
    *("three plus four", "six plus four", "ten plus three", "nine plus nine"),
    *("eight plus six", "nine plus six", "one plus eight", "two plus two"),
)


class CrossedError(Exception):
    """A call got what belongs to another one."""


class LostTurnError(Exception):
    """A question was not answered, or a text was not spoken; the call goes on."""


@dataclass(frozen=True, eq=False)
class Script:
    """What one call is about. The references come from calls that were held one after the other."""

    text: str
    """The agent is made to say it."""
    recording: NDArray[np.int16]
    """The user's question: 16 kHz, shape [n]."""
    words: list[str]
    """In the recording."""
    sum: str
    """The question that the user types."""
    speech: NDArray[np.int16] = field(default_factory=lambda: np.zeros(0, np.int16))
    """The text, as the agent speaks it: shape [n]."""
    spoken_answer: str = ""
    """To the recording, in a conversation that has just begun."""
    typed_answer: str = ""
    """To the sum, likewise."""


class Scripts:
    """A pool; the callers of one soak share it.

    Args:
        scripts: with their references.
    """

    def __init__(self, scripts: Iterable[Script]) -> None:
        self.all = tuple(scripts)
        self._free = list(self.all)

    @asynccontextmanager
    async def take(self, chance: Random) -> AsyncIterator[Script]:
        """One that no other call has now."""
        script = self._free.pop(chance.randrange(len(self._free)))
        try:
            yield script
        finally:
            self._free.append(script)

    def check_text(self, script: Script, text: str) -> None:
        """Raise CrossedError for the text of another call, and UnexpectedAnswerError for any other."""
        if text == script.text:
            return
        if any(other.text in text for other in self.all if other is not script):
            raise CrossedError(f"the agent wrote {text!r} instead of {script.text!r}")
        raise UnexpectedAnswerError(f"the agent wrote {text!r} instead of {script.text!r}")

    def check_speech(self, script: Script, speech: NDArray[np.int16]) -> None:
        """As :meth:`check_text`, for samples. They may break off earlier than the reference."""
        own = likeness(script.speech, speech)
        if own >= _LIKE:
            return
        for other in self.all:
            if other is not script and likeness(other.speech, speech) >= _LIKE:
                raise CrossedError(f"the agent spoke {other.text!r} instead of {script.text!r}")
        raise UnexpectedAnswerError(
            f"{len(speech)} samples of {script.text!r} are like its {len(script.speech)} by {own:.2f} only"
        )

    def check_transcript(self, script: Script, text: str) -> int:
        """The wrong words. Raises CrossedError if the words are those of another call."""
        heard = spoken_words(text)
        wrong = word_errors(script.words, heard)
        # Half of the other one's words: nothing, or one word, is no other call's question.
        if any(word_errors(other.words, heard) < min(wrong, 1 + len(other.words) // 2) for other in self.all):
            raise CrossedError(f"{' '.join(script.words)!r} was understood as {text!r}")
        return wrong

    def check_answer(self, answer: str, text: str) -> None:
        """Raise CrossedError for the answer to another call's question, and LostTurnError for any other."""
        if text == answer:
            return
        if any(text in (other.spoken_answer, other.typed_answer) for other in self.all):
            raise CrossedError(f"the answer was {text!r} instead of {answer!r}")
        raise LostTurnError(f"the answer was {text!r} instead of {answer!r}")


def likeness(reference: NDArray[np.int16], speech: NDArray[np.int16]) -> float:
    """Correlation of two spectrograms: near 1.0 for the same words, although espeak-ng's noise varies.

    Speech may break off earlier than the reference, but not go on for longer; 0.0 if it does, or is empty.
    """
    one, other = _spectrogram(reference), _spectrogram(speech)
    if not 0 < len(other) <= len(one) + _LATER:
        return 0.0
    count = min(len(one), len(other))
    one, other = one[:count] - one[:count].mean(), other[:count] - other[:count].mean()
    size = float(np.sqrt((one * one).sum() * (other * other).sum()))
    return float((one * other).sum()) / size if size else 0.0


def _spectrogram(speech: NDArray[np.int16]) -> NDArray[np.float64]:
    """Levels (dB, at least 40 below full scale) of frames of 23 ms: shape [frames, bands]."""
    frames = speech[: len(speech) // _FRAME * _FRAME].reshape(-1, _FRAME) / 32_768
    power = np.abs(np.fft.rfft(frames * np.hanning(_FRAME), axis=1)) ** 2
    bands = np.add.reduceat(power, _BANDS, axis=1)
    return np.asarray(10 * np.log10(bands + 1e-2))


# --- the two ways to the agent --------------------------------------------------------------


class Line(Protocol):
    """A call, by any protocol."""

    async def send_audio(self, samples: NDArray[np.int16]) -> None:
        """16 kHz, shape [n]."""

    async def say(self, text: str) -> None:
        """Make the agent say it, and forget it."""

    async def ask(self, text: str) -> None:
        """What the user typed."""

    async def interrupt(self) -> None:
        """Stop what the agent says."""

    async def hang_up(self) -> None:
        """End the call as a user does."""


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


class _DirectLine:
    def __init__(self, call: Call) -> None:
        self._call = call

    async def send_audio(self, samples: NDArray[np.int16]) -> None:
        await self._call.send_audio(samples)

    async def say(self, text: str) -> None:
        self._call.say(text, remember=False)

    async def ask(self, text: str) -> None:
        self._call.send_text(text)

    async def interrupt(self) -> None:
        self._call.interrupt()

    async def hang_up(self) -> None:
        await self._call.hang_up()


class _SocketLine:
    def __init__(self, socket: Any) -> None:
        self._socket = socket

    async def send_audio(self, samples: NDArray[np.int16]) -> None:
        await self._socket.send(samples.astype("<i2").tobytes())

    async def say(self, text: str) -> None:
        await self._send({"type": "say", "text": text, "remember": False})

    async def ask(self, text: str) -> None:
        await self._send({"type": "text", "text": text})

    async def interrupt(self) -> None:
        await self._send({"type": "interrupt"})

    async def hang_up(self) -> None:
        await self._socket.close()

    async def _send(self, message: dict[str, object]) -> None:
        await self._socket.send(json.dumps(message))


_OPTIONS = {"greeting": "", "output_sample_rate": _RATE, "sampling": {"temperature": 0.0}}


@asynccontextmanager
async def _direct(target: Target) -> AsyncIterator[tuple[Line, Heard]]:
    heard = Heard()
    async with connect(
        target.address, greeting="", output_sample_rate=_RATE, sampling=SamplingOptions(temperature=0.0)
    ) as call:

        async def listen() -> None:
            async for event in call:
                await heard.on_event(event)

        async with _listening(listen, heard):
            yield _DirectLine(call), heard


@asynccontextmanager
async def _through_gateway(target: Target) -> AsyncIterator[tuple[Line, Heard]]:
    heard = Heard()
    async with visit_socket(target, _OPTIONS) as socket:

        async def listen() -> None:
            header: dict[str, Any] = {}
            async for message in socket:
                if isinstance(message, str):
                    header = json.loads(message)
                if (event := _read(header, message)) is not None:
                    await heard.on_event(event)

        async with _listening(listen, heard):
            yield _SocketLine(socket), heard


def _read(header: dict[str, Any], message: str | bytes) -> object:
    """The event of a JSON message, or of the samples behind one; None: it does not matter here."""
    if isinstance(message, bytes):
        samples = np.frombuffer(message, "<i2")
        return AgentAudio(
            header["turn"], header["response_id"], header["offset_ms"], header["sample_rate"], samples, ""
        )
    return decode_event(message.encode()) if header["type"] in _NEEDED else None


@asynccontextmanager
async def _listening(listen: Callable[[], Awaitable[None]], heard: Heard) -> AsyncIterator[None]:
    """Receive as long as the block runs; what breaks the call off is raised by it."""

    async def run() -> None:
        try:
            await listen()
        except (ParleyError, ConnectionClosed) as error:
            heard.failure = error
        finally:
            async with heard.changed:
                heard.is_over = True
                heard.changed.notify_all()

    task = asyncio.create_task(run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()


# --- conversations --------------------------------------------------------------------------


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
            if one is not other and likeness(one.speech, other.speech) >= _LIKE:
                raise UnexpectedAnswerError(f"{one.text!r} and {other.text!r} sound the same")
    return Scripts(scripts)


async def _say_and_ask(target: Target, text: str, question: str) -> tuple[NDArray[np.int16], str]:
    """How a text is spoken, shape [n], and the answer to a question that is typed after it."""
    async with _direct(target) as (line, heard):
        await line.say(text)
        said = await heard.response_after(set())
        await line.ask(question)
        answer = heard.texts.get(await heard.response_after({said}), "").strip()
        await line.hang_up()
    return heard.samples_of(said), answer


async def _converse(
    chance: Callable[[], float], line: Line, heard: Heard, scripts: Scripts, script: Script
) -> str:
    """One text and one question; returns the outcome."""
    await line.say(script.text)
    said = await heard.response_after(set())
    scripts.check_text(script, heard.texts.get(said, "").strip())
    speech = heard.samples_of(said)
    scripts.check_speech(script, speech)
    if chance() < _INTERRUPTING:
        await asyncio.sleep(chance() * len(speech) / _RATE)
        await line.interrupt()
    else:
        await asyncio.sleep(len(speech) / _RATE)
    wrong = 0
    if chance() < _TYPING:
        await line.ask(script.sum)
        answered = heard.texts.get(await heard.response_after({said}), "").strip()
        scripts.check_answer(script.typed_answer, answered)
    else:
        await _speak(line, script)
        answered = heard.texts.get(await heard.response_after({said}), "").strip()
        wrong = scripts.check_transcript(script, " ".join(heard.finals))
        if not wrong:
            scripts.check_answer(script.spoken_answer, answered)
    await line.hang_up()
    remarks = ("misheard" if wrong else "", "moved" if heard.moves else "", *sorted(set(heard.fallbacks)))
    return ", ".join(("answered", *filter(None, remarks)))


async def _speak(line: Line, script: Script) -> None:
    """The question in real time, and two seconds of silence behind it."""
    microphone = PacedMicrophone(line.send_audio)
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


async def _hold(
    target: Target, way: Callable[[Target], AbstractAsyncContextManager[tuple[Line, Heard]]]
) -> str:
    scripts = target.scripts
    if scripts is None:
        raise ValueError("a conversation needs scripts")
    try:
        async with scripts.take(target.random) as script, way(target) as (line, heard):
            return await _converse(target.random.random, line, heard, scripts, script)
    except ParleyError as error:
        if opening_code(error) != FULL:
            raise
        return FULL
    except RefusedVisitError as error:
        if str(error) not in (FULL, "too_many_calls"):
            raise
        return str(error)


async def _given_up(
    target: Target, way: Callable[[Target], AbstractAsyncContextManager[tuple[Line, Heard]]]
) -> str:
    work = asyncio.ensure_future(_hold(target, way))
    try:
        await asyncio.wait([work], timeout=_GIVE_UP_S * target.random.random())
    finally:
        work.cancel()
        await asyncio.wait([work])
    return "given up" if work.cancelled() else work.result()


async def conversation(target: Target) -> str:
    """A call by gRPC: a text, an interruption or none, a question, its answer."""
    return await _hold(target, _direct)


async def conversation_given_up(target: Target) -> str:
    """The same, dropped at a random moment."""
    return await _given_up(target, _direct)


async def gateway_conversation(target: Target) -> str:
    """The same as :func:`conversation`, through the gateway."""
    return await _hold(target, _through_gateway)


async def gateway_conversation_given_up(target: Target) -> str:
    """The same as :func:`conversation_given_up`, through the gateway."""
    return await _given_up(target, _through_gateway)


SESSIONS: dict[Session, int] = {
    conversation: 8,
    conversation_given_up: 3,
    gateway_conversation: 8,
    gateway_conversation_given_up: 3,
}
"""How often each kind is held, relative to the others."""
