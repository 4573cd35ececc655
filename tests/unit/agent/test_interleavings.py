"""Whatever happens, in whatever order: what must hold of every session holds."""

from __future__ import annotations

import asyncio
import random

import pytest
import random_calls
from agent_fakes import FakeCall, calls, now, says
from random_calls import BATCHES, TOOLS, run_batch

from parley.agent.config import AgentConfig, AgentDeadlines
from parley.errors import (
    ContextTooLongError,
    InferenceError,
    ModelUnavailableError,
    OverloadedError,
)
from parley.protocol import (
    Audio,
    BargeInOptions,
    Closed,
    Commit,
    Control,
    Discard,
    Dtmf,
    Interrupt,
    Interrupted,
    Playback,
    Remember,
    Respond,
    ResponseText,
    Say,
    SilenceOptions,
    Start,
    Text,
    Tool,
    ToolRequest,
    ToolResponse,
    Truncate,
    Truncated,
    TurnOptions,
    Update,
)

NOTE = "The client has written this."
RUNS = 400
CHUNK = bytes(100 * 32)
SENTENCES = (
    *random_calls.SENTENCES,
    "Well, 3.5 degrees, e.g. in Oslo; that is all I know. Anything else?",
    "  ",
)
TEXTS = ("hello", "tell me a story", "stop", "", "what about rome", "and then", "mhm")


def speech(rng: random.Random) -> list:
    """What the recogniser will say in the next seconds."""
    return random_calls.speech(rng, 9_000, lambda _: rng.choice(TEXTS))


def answer(rng: random.Random) -> list:
    """An answer of the language model, perhaps a broken one."""
    kind = rng.random()
    if kind < 0.15:
        return calls(*random_calls.tool_names(rng))
    events = says(rng.choice(SENTENCES))
    if kind < 0.30:
        failure = rng.choice((InferenceError("x"), ContextTooLongError("x"), ModelUnavailableError("x")))
        return [*events[: rng.randrange(len(events))], failure]
    return events


def prepare(rng: random.Random) -> FakeCall:
    deadlines = AgentDeadlines(llm_s=2.0, tts_s=2.0, tool_s=1.5, asr_s=1.0, idle_s=20.0, asr_outage_s=3.0)
    eagerness = rng.choice(("off", "eager", "normal", "patient"))
    call = FakeCall(AgentConfig(deadlines=deadlines, lead_ms=rng.choice((100, 500)), eagerness=eagerness))
    random_calls.fill(
        rng, call, heard=speech, answer=answer, no_score=RuntimeError("x"), first_s=(0.0, 0.02, 0.4, 3.0)
    )
    call.synthesizer.marks = rng.random() < 0.8
    call.synthesizer.failures += [InferenceError("voice") if rng.random() < 0.1 else None for _ in range(20)]
    if rng.random() < 0.2:
        call.recognition.push_failures += [
            rng.choice((OverloadedError("x"), InferenceError("x")))
        ] * rng.randint(1, 4)
    if rng.random() < 0.1:
        call.recognition.start_failures += [ModelUnavailableError("x")] * rng.randint(1, 3)
    return call


def act(rng: random.Random, call: FakeCall) -> None:
    """Something that a client may do, or that may happen to it."""
    kind = rng.random()
    requests, audio = call.outlet.of(ToolRequest), call.outlet.of(Audio)
    if kind < 0.35 and requests:
        call.send(ToolResponse(call_id=rng.choice(requests).call_id, output={"ok": 1}))
    elif kind < 0.60 and audio:
        last = audio[-1]
        played = rng.randint(0, last.offset_ms + 200)
        call.send(Playback(response_id=last.response_id, played_ms=played))
    elif kind < 0.68:
        call.send(Control(action="mute"))
    elif kind < 0.77:
        call.send(Control(action="unmute"))
    elif kind < 0.80:
        call.send(Text(text="what time is it"))
    elif kind < 0.82:
        call.send(Dtmf(digits=rng.choice(("1", "12#", "##"))))
    elif kind < 0.84:
        call.send(Say(text="One thing more.", interruptible=rng.random() < 0.5, remember=rng.random() < 0.5))
    elif kind < 0.86:
        call.send(rng.choice((b"{", b'{"type":"nothing"}', b"\x00")))
    elif kind < 0.88:
        call.send(audio=b"\x00" * rng.choice((1, 33_000)))
    else:
        steer(rng, call, audio[-1].response_id if audio else "none")


def steer(rng: random.Random, call: FakeCall, response_id: str) -> None:
    """Something by which a client takes matters into its own hands."""
    call.send(
        rng.choice(
            (
                Commit(),
                Commit(),
                Discard(),
                Interrupt(response_id=rng.choice((None, response_id))),
                Truncate(response_id=response_id, played_ms=rng.randint(-10, 3_000)),
                Truncate(response_id=response_id, played_ms=rng.randint(-10, 3_000)),
                Respond(use_tools=rng.random() < 0.5),
                Remember(role=rng.choice(("user", "assistant", "system")), text=NOTE),
                Update(system_prompt="other", tools=rng.choice(([], [Tool(name="get_weather")]))),
                Update(output=rng.choice(("audio", "text")), phrases=[rng.choice("ab")]),
                Update(turn=turn_options(rng), barge_in=BargeInOptions(enabled=rng.random() < 0.5)),
            )
        )
    )


def turn_options(rng: random.Random) -> TurnOptions:
    """Who ends a turn of the user, and who asks for an answer."""
    return TurnOptions(
        detection="manual" if rng.random() < 0.2 else "auto",
        answer=rng.random() < 0.8,
        eagerness=rng.choice((None, "eager", "off")),
    )


async def end(rng: random.Random, call: FakeCall) -> None:
    """One of the ways in which a session ends."""
    way = rng.randrange(5)
    if way == 0:
        call.send(Control(action="hangup"))
    elif way == 1:
        call.outlet.gone = True
    elif way == 2:
        await call.host.shut_down()
    elif way == 3:
        await call.wait_for(Closed)  # nothing arrives any more
    else:
        call.send(end=True)


def check_memory(call: FakeCall, session) -> None:
    """Everything that is remembered was heard."""
    written: dict[str, str] = {}
    for event in call.outlet.of(ResponseText):
        written[event.response_id] = written.get(event.response_id, "") + event.text
    whole = {" ".join(text.split()) for text in written.values()}
    cuts = {}
    for cut in call.outlet.of(Interrupted):
        heard = "".join(
            event.text
            for event in call.outlet.of(Audio)
            if event.response_id == cut.response_id and event.offset_ms <= cut.played_ms
        )
        if not any(request.request_id.startswith(cut.response_id) for request in call.synthesizer.requests):
            heard = written.get(cut.response_id, "")  # what is only written is read at once
        if call.synthesizer.marks:
            assert "".join(heard.split()).startswith("".join(cut.spoken_text.split()))
        cuts[cut.spoken_text.rstrip(" .,!?;:")] = cut
    for corrected in call.outlet.of(Truncated):
        cuts[corrected.spoken_text.rstrip(" .,!?;:")] = corrected
    for message in session._conversation._history.messages():
        if message.role != "assistant" or message.content in ("", NOTE):
            continue
        text = " ".join(message.content.split())
        if text.endswith("…"):
            # Cut by the user, or by a failure: then it is the beginning of something written.
            assert text[:-1] in cuts or any(full.startswith(text[:-1]) for full in whole)
        else:
            assert any(text in full for full in whole)


async def run(seed: int) -> None:
    rng = random.Random(seed)
    call = prepare(rng)
    start = Start(
        tools=TOOLS,
        turn=turn_options(rng) if rng.random() < 0.3 else TurnOptions(),
        greeting=rng.choice(("", "", "Hello, this is a greeting.")),
        barge_in=random_calls.barge_in(rng),
        silence=SilenceOptions(
            prompt_after_ms=rng.choice((0, 1_000)), hang_up_after_ms=rng.choice((0, 0, 4_000))
        ),
    )
    await call.start(start, microphone=False)
    session = call.host._sessions.get("call")
    over = now() + rng.uniform(0.2, 9.0)
    while now() < over:
        await asyncio.sleep(rng.choice((0.0, 0.02, 0.1)))
        call.send(audio=CHUNK)
        if rng.random() < 0.3:
            act(rng, call)
    await end(rng, call)
    await call.check_nothing_left()
    assert len(call.outlet.of(Closed)) == 1
    if session is not None:
        check_memory(call, session)


@pytest.mark.parametrize("batch", range(BATCHES))
async def test_any_order_of_events(batch):
    await run_batch(batch, RUNS, run)
