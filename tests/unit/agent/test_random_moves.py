"""Random calls that are cut at random: what a session sends is accepted, and no move breaks a session."""

from __future__ import annotations

import random

import msgspec
import pytest
from agent_fakes import FakeCall, calls, now, says
from moving_client import Kept
from random_calls import BATCHES, SENTENCES, TOOLS, barge_in, fill, run_batch, speech, tool_names

from parley.agent.config import AgentConfig
from parley.agent.resumption import check_resume
from parley.checkpoint import Resume
from parley.errors import InferenceError
from parley.llm.messages import Completed, TextDelta
from parley.protocol import (
    Audio,
    Checkpoint,
    Connected,
    Dtmf,
    Interrupt,
    Remember,
    Respond,
    Say,
    Start,
    Step,
    Text,
    ToolRequest,
    ToolResponse,
    Transition,
    TurnOptions,
    decode_start,
    encode,
)

RUNS = 60
LENGTH_MS = 20_000
MESSAGES = (
    Text(text="and typed"),
    Say(text="A text that is said word for word."),
    Say(text="This one cannot be stopped.", interruptible=False, remember=False),
    Respond(system_prompt="Rhyme.", use_tools=False),
    Remember(role="system", text="It is late."),
    Remember(role="user", text="By the way."),
    Interrupt(),
    Dtmf(digits="12"),
    Dtmf(digits="#"),
)
STEPS = [
    Step(name="a", instructions="Ask.", next=[Transition(to="b", when="x"), Transition(to="c", when="y")]),
    Step(name="b", tools=["get_weather", "get_report"], next=[Transition(to="a", when="z")], history="reset"),
    Step(name="c", voice="high", next=[Transition(to="b", when="z")], history="summary"),
]


def answer(rng: random.Random) -> list:
    chosen = rng.random()
    if chosen < 0.15:
        return calls(*tool_names(rng))
    if chosen < 0.2:
        named = tool_names(rng)[:1] if rng.random() < 0.5 else []
        return calls(("go_to_step", {"step": rng.choice("abc")}), *named)
    if chosen < 0.3:
        return [*says(rng.choice(SENTENCES))[:-1], *calls(*tool_names(rng))]
    if chosen < 0.4:
        return [TextDelta(text="It is "), InferenceError("x")]
    if chosen < 0.5:
        return [TextDelta(text=rng.choice(SENTENCES)), Completed(finish_reason="length")]
    return says(rng.choice(SENTENCES))


def make_call(rng: random.Random, name: str, start_ms: int = 0) -> FakeCall:
    call = FakeCall(AgentConfig(history="summarise" if rng.random() < 0.3 else "drop"), name)

    def heard(rng: random.Random) -> list:
        texts = ("", "mhm", "what is it", "stop", "one more word")
        events = speech(rng, LENGTH_MS, lambda _: rng.choice(texts))
        return [(at, event) for at, event in events if at > start_ms]

    fill(rng, call, heard=heard, answer=answer, no_score=InferenceError("x"), first_s=(0.0, 0.02, 0.5))
    return call


async def act(rng: random.Random, call: FakeCall, until_ms: float) -> None:
    """The client sends messages, and answers most tool requests."""
    answered: set[str] = set()
    at = (now() - call.began) * 1000
    while at < until_ms:
        at = min(until_ms, at + rng.choice((50, 300, 1_500)))
        await call.until(at)
        if rng.random() < 0.3:
            call.send(rng.choice(MESSAGES))
        for request in call.outlet.of(ToolRequest):
            if request.call_id not in answered and rng.random() < 0.7:
                answered.add(request.call_id)
                call.send(ToolResponse(call_id=request.call_id, output="x"))


def check_checkpoints(call: FakeCall, config: AgentConfig) -> None:
    kept = Kept()
    for event in call.outlet.of(Checkpoint):
        kept.settings = event.settings or kept.settings
        kept.history = event.history or kept.history
        resume = Resume(state=event.state, history=kept.history, audio_ms=event.state.audio_ms)
        start = decode_start(encode(msgspec.structs.replace(kept.settings, resume=resume)))
        assert start.resume == resume
        check_resume(start.resume, start, config)
    positions = [event.state.audio_ms for event in call.outlet.of(Checkpoint)]
    assert positions == sorted(positions)
    turns = [event.state.turns for event in call.outlet.of(Checkpoint)]
    assert turns == sorted(turns)


def check_offsets(first: FakeCall, second: FakeCall, response_id: str) -> None:
    position_ms = 0.0
    for event in [*first.outlet.of(Audio), *second.outlet.of(Audio)]:
        if event.response_id == response_id:
            assert abs(event.offset_ms - position_ms) <= 2
            position_ms += event.samples / event.sample_rate * 1000


async def run(seed: int) -> None:
    rng = random.Random(seed)
    start = Start(
        checkpoints=True,
        tools=TOOLS,
        steps=STEPS if rng.random() < 0.5 else [],
        greeting=rng.choice(("", "Hello there.")),
        barge_in=barge_in(rng),
        turn=TurnOptions(eagerness=rng.choice(("off", "normal", "patient"))),
        output=rng.choice(("audio", "audio", "text")),
    )
    first = make_call(rng, "first")
    await first.start(start)
    await act(rng, first, rng.randint(500, LENGTH_MS))
    kept = Kept.of(first.outlet.sent)
    config = AgentConfig()
    check_checkpoints(first, config)
    await first.end()
    assert kept.state is not None
    resume = kept.resume()
    second = make_call(rng, "second", 100)
    await second.start(msgspec.structs.replace(start, resume=resume))
    assert second.outlet.of(Connected)[0].resumed
    await act(rng, second, 8_000)
    check_checkpoints(second, config)
    if resume.progress is not None and kept.state.agent is not None:
        check_offsets(first, second, kept.state.agent.response_id)
    assert "internal_error" not in second.outlet.codes
    await second.end()


@pytest.mark.parametrize("batch", range(BATCHES))
async def test_random_moves(batch):
    await run_batch(batch, RUNS, run)
