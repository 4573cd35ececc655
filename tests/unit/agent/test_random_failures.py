"""Whatever failed, in whatever order: when all is quiet again, no turn is stuck and no word is lost."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from functools import partial

import pytest
import random_calls
from agent_fakes import FakeCall, calls, now, says
from random_calls import BATCHES, TOOLS, run_batch

from parley.agent.config import AgentConfig, AgentDeadlines
from parley.errors import (
    ContextTooLongError,
    InferenceError,
    InvalidModelOutputError,
    ModelUnavailableError,
    OverloadedError,
)
from parley.llm.messages import Completed, TextDelta
from parley.protocol import (
    Audio,
    BargeInOptions,
    Closed,
    Commit,
    Control,
    Dtmf,
    ErrorEvent,
    Interrupt,
    Interrupted,
    Playback,
    Respond,
    ResponseDone,
    ResponseText,
    Resumed,
    Say,
    SpeechIgnored,
    Start,
    Text,
    ToolCancelled,
    ToolRequest,
    ToolResponse,
    Transcript,
    Truncate,
    TurnMetrics,
    Update,
)

RUNS = 240
ACTIVE_S = 10.0
QUIET_S = 60.0
DEADLINES = AgentDeadlines(
    llm_s=2.0, tts_s=2.0, tool_s=1.5, background_tool_s=1.5, asr_s=1.0, idle_s=1_000.0, asr_outage_s=30.0
)
SENTENCES = (*random_calls.SENTENCES, "Are you sure?")


def chunk(ms: int) -> bytes:
    return bytes(ms * 32)


def speech(rng: random.Random) -> list:
    """What the recogniser hears in the next seconds: no word twice, but for those that mean something."""

    def text_of(number: int) -> str:
        texts = (f"alpha{number} beta{number}", f"gamma{number}", f"stop{number} now", "mhm", "")
        return rng.choices(texts, weights=(50, 25, 8, 8, 9))[0]

    return random_calls.speech(rng, int(ACTIVE_S * 900), text_of)


def answer(rng: random.Random) -> list:
    """What the language model writes: an answer, a call of tools, nothing of use, or a failure."""
    kind = rng.random()
    if kind < 0.20:
        return calls(*random_calls.tool_names(rng))
    if kind < 0.30:
        return rng.choice(([Completed(finish_reason="stop")], says("..."), [TextDelta(text="\U0001f44d")]))
    events = says(rng.choice(SENTENCES))
    if kind < 0.45:
        failures = (
            InferenceError("x"),
            ModelUnavailableError("x"),
            ContextTooLongError("x"),
            InvalidModelOutputError("x"),
            ZeroDivisionError("x"),
        )
        return [*events[: rng.choice((0, 0, rng.randrange(len(events))))], rng.choice(failures)]
    return events


def prepare(rng: random.Random) -> FakeCall:
    config = AgentConfig(
        deadlines=DEADLINES,
        lead_ms=rng.choice((100, 500)),
        eagerness=rng.choice(("off", "eager", "normal", "patient")),
        written_forms=False,
        history="summarise" if rng.random() < 0.2 else "drop",
    )
    call = FakeCall(config)
    random_calls.fill(
        rng, call, heard=speech, answer=answer, no_score=math.nan, first_s=(0.0, 0.02, 0.4, 1.0, 2.5)
    )
    call.synthesizer.failures += [
        rng.choice((InferenceError("x"), ZeroDivisionError("x"))) if rng.random() < 0.1 else None
        for _ in range(20)
    ]
    if rng.random() < 0.1:
        call.synthesizer.character_ms = 0  # it makes no audio at all
    if rng.random() < 0.2:
        failure = rng.choice((OverloadedError("x"), InferenceError("x")))
        call.recognition.push_failures += [failure] * rng.randint(1, 4)
    return call


def steer(rng: random.Random, call: FakeCall, count: int) -> str:
    """Something that a client does; returns what it has typed."""
    audio = call.outlet.of(Audio)
    response_id = audio[-1].response_id if audio else "none"
    played_ms = audio[-1].offset_ms if audio else 0
    message = rng.choice(
        (
            Text(text=f"typed{count}"),
            Commit(),
            Commit(),
            Interrupt(),
            Interrupt(response_id=response_id),
            Dtmf(digits="12#"),
            Dtmf(digits="5"),
            Say(text="One thing more.", interruptible=rng.random() < 0.5),
            Respond(use_tools=rng.random() < 0.5),
            Truncate(response_id=response_id, played_ms=rng.randint(0, 2_000)),
            Control(action="mute"),
            Control(action="unmute"),
            Control(action="unmute"),
            Playback(response_id=response_id, played_ms=played_ms),
            Update(barge_in=BargeInOptions(enabled=rng.random() < 0.5)),
        )
    )
    call.send(message)
    return message.text if isinstance(message, Text) else ""


class Observer:
    """Collects what the history has held."""

    def __init__(self, call: FakeCall) -> None:
        self.call = call
        self.session = call.host._sessions["call"]
        self.history = self.session._conversation._history
        self.words: set[str] = set()
        self.typed: set[str] = set()

    def look(self) -> None:
        """Note the words of the user that are in the history now; none is there twice."""
        texts = [message.content for message in self.history.messages() if message.role == "user"]
        count = Counter(" ".join(texts).split())
        doubled = [
            word for word, times in count.items() if times > 1 and word[-1].isdigit() and word.isalnum()
        ]
        assert not [word for word in doubled if not word.isdigit()], f"twice: {doubled} in {texts}"
        self.words |= set(count)

    def counts(self, event: object) -> bool:
        """Whether these are words that the history has held; an "mhm" may be another one."""
        if not isinstance(event, Transcript) or not event.is_final:
            return False
        return bool(set(event.text.split()) & self.words - {"mhm", "now"})


def check_quiet(observer: Observer) -> None:
    """Nothing is stuck."""
    conversation = observer.session._conversation
    answers = conversation.agent_turns
    assert answers._current is None, "a turn is stuck"
    assert not answers._queue, "something waits to be said"
    assert answers._unhandled is None, "a turn of the user waits"
    assert not conversation.interruptions.undecided
    assert not conversation._endpointer.pending
    assert not conversation._tools._running
    assert not answers.unread, "a result waits to be announced"
    assert observer.call.outlet.states[-1] == "listening"


def check_responses(call: FakeCall) -> None:
    """Every response has one end, and nothing of it follows."""
    over: dict[str, object] = {}
    done, sent_ms = Counter(), Counter()
    begun = set()
    for event in call.outlet.events:
        response_id = getattr(event, "response_id", None)
        if isinstance(event, Audio | ResponseText):
            assert response_id not in over, f"{event} after {over.get(response_id)}"
            begun.add(response_id)
        if isinstance(event, Audio):
            assert abs(sent_ms[response_id] - event.offset_ms) <= 1.0, "a gap in the audio"
            sent_ms[response_id] += event.samples * 1000 / event.sample_rate
        if isinstance(event, ResponseDone | Interrupted):
            over[response_id] = event
            done[response_id] += isinstance(event, ResponseDone)
    assert set(done.values()) <= {0, 1}
    assert begun <= set(over)
    cancelled = Counter(event.call_id for event in call.outlet.of(ToolCancelled))
    assert set(cancelled.values()) <= {1}


def check_turns(call: FakeCall) -> None:
    """Every turn has one report; one without audio has failed, with an error."""
    metrics = Counter(event.turn for event in call.outlet.of(TurnMetrics))
    assert set(metrics.values()) <= {1}
    assert {event.turn for event in call.outlet.of(ResponseDone)} <= set(metrics)
    assert {event.turn for event in call.outlet.of(ToolRequest)} <= set(metrics)
    interrupted = {event.turn for event in call.outlet.of(Interrupted)}
    errors = 0
    for event in call.outlet.events:
        errors += isinstance(event, ErrorEvent)
        if isinstance(event, ResponseDone) and event.turn not in interrupted:
            assert event.audio_ms or errors, f"{event} is silence, and nothing has failed"
            errors = 0
    acted = {event.turn for event in call.outlet.of(ToolRequest)}
    for event in call.outlet.of(ResponseText):
        assert event.turn not in acted or event.text != AgentConfig().apology, "asked to say it again"


def check_words(observer: Observer) -> None:
    """Every word of the user was answered, or an event says why not."""
    outlet = observer.call.outlet
    ignored = {
        word for event in (*outlet.of(Resumed), *outlet.of(SpeechIgnored)) for word in event.text.split()
    }
    heard = {word for text in outlet.finals for word in text.split()} | observer.typed
    lost = heard - observer.words - ignored
    assert not lost, f"lost: {lost}"
    if observer.history.unanswered:
        events = outlet.events
        asked = max((at for at, event in enumerate(events) if observer.counts(event)), default=0)
        assert any(isinstance(event, ErrorEvent | Interrupted) for event in events[asked:]), "not answered"


async def run(seed: int, *, steered: bool) -> None:
    rng = random.Random(seed)
    call = prepare(rng)
    start = Start(
        tools=TOOLS,
        greeting=rng.choice(("", "Hello, this is a greeting.")),
        barge_in=random_calls.barge_in(rng),
    )
    await call.start(start, microphone=False)
    observer = Observer(call)
    answered: set[str] = set()
    over, count = now() + ACTIVE_S, 0
    while now() < over:
        await asyncio.sleep(rng.choice((0.05, 0.1)))
        call.send(audio=chunk(100))
        for request in call.outlet.of(ToolRequest):
            if request.call_id not in answered and rng.random() < 0.3:
                answered.add(request.call_id)
                call.send(
                    ToolResponse(call_id=request.call_id, output={"ok": 1}, is_error=rng.random() < 0.2)
                )
        if steered and rng.random() < 0.1:
            count += 1
            observer.typed |= set(steer(rng, call, count).split())
        observer.look()
    call.send(Control(action="unmute"))
    quiet = now() + QUIET_S
    while now() < quiet:
        await asyncio.sleep(0.5)
        call.send(audio=chunk(500))
        observer.look()
    check_quiet(observer)
    check_responses(call)
    check_turns(call)
    check_words(observer)
    await call.end()
    assert len(call.outlet.of(Closed)) == 1


@pytest.mark.parametrize("steered", [False, True])
@pytest.mark.parametrize("batch", range(BATCHES))
async def test_random_failures_lose_no_word_and_block_nothing(batch, steered):
    await run_batch(batch, RUNS // 2, partial(run, steered=steered))
