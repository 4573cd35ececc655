"""Calls that go as chance has it: what both kinds of random tests draw, always in the same order."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence

from agent_fakes import FakeCall, all_of_utterance, utterance

from parley.asr.messages import OnsetEvent, OnsetLostEvent
from parley.errors import InferenceError
from parley.protocol import BargeInOptions, Tool

BATCHES = 10
SENTENCES = (
    "Okay.",
    "It is sunny and warm in Paris today.",
    "Once there was a robot, and it lived by the sea. It waved at the boats. The boats waved back.",
)
TOOLS = [
    Tool(name="get_weather"),
    Tool(name="get_time"),
    Tool(name="get_report", mode="background"),
    Tool(name="get_news", mode="background", announce=False, cancel_on_interruption=True),
    Tool(name="order", cancel_on_interruption=False),
]


def speech(rng: random.Random, length_ms: int, text_of: Callable[[int], str]) -> list:
    """What the recogniser hears; ``text_of`` gives the words of an utterance by its number."""
    events, at, number = [], rng.randint(50, 800), 0
    while at < length_ms:
        number += 1
        end = at + rng.randint(120, 900)
        text = text_of(number)
        events += rng.choice((utterance, all_of_utterance))(number, at, end, text)
        at = end + rng.choice((320, 400, 700, 1_500, 3_000))
        if rng.random() < 0.2:
            events += [(at, OnsetEvent(at_ms=at - 32)), (at + 64, OnsetLostEvent())]
            at += 100
    return events


def tool_names(rng: random.Random) -> list[tuple[str, dict]]:
    """What the language model calls, each with its arguments."""
    names = rng.sample(("unknown", *(tool.name for tool in TOOLS)), rng.randint(1, 3))
    return [(name, {"city": "Rome"}) for name in names]


def fill(
    rng: random.Random,
    call: FakeCall,
    *,
    heard: Callable[[random.Random], list],
    answer: Callable[[random.Random], list],
    no_score: float | Exception,
    first_s: Sequence[float],
) -> None:
    """Say what each stage does, and how long it takes.

    Args:
        rng: Chance.
        call: Has not begun.
        heard: Makes the recogniser's script.
        answer: Makes one answer of the language model.
        no_score: What the turn model gives instead of a score, beside failures.
        first_s: How long the language model's first token may take.
    """
    call.turn_model.takes_s = rng.choice((0.0, 0.05, 1.0))
    call.turn_model.scores += [
        rng.choice((rng.random(), rng.random(), InferenceError("x"), no_score)) for _ in range(20)
    ]
    call.recognition.script.extend(heard(rng))
    call.recognition.push_s = rng.choice((0.001, 0.005, 0.15))
    call.chat.answers += [answer(rng) for _ in range(20)]
    call.chat.first_s = rng.choice(first_s)
    call.chat.token_s = rng.choice((0.0, 0.01, 0.1))
    call.synthesizer.first_s = rng.choice((0.0, 0.01, 0.3))


def barge_in(rng: random.Random) -> BargeInOptions:
    """What counts as an interruption."""
    return BargeInOptions(
        min_words=rng.choice((0, 1, 1, 2)),
        min_speech_ms=rng.choice((0, 200, 600)),
        pause_playback=rng.random() < 0.8,
        enabled=rng.random() < 0.9,
    )


async def run_batch(batch: int, runs: int, run: Callable[[int], Awaitable[None]]) -> None:
    """Run every seed of a batch; what fails names its seed."""
    for seed in range(batch, runs, BATCHES):
        try:
            await run(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
