"""``parley models --advise``: which of the known language models answers in time on this machine.

Each model whose weights are here is loaded by itself, in a process of its own, by the code that serves it. It
answers in a conversation with tools: once with nothing in its cache, then as in the turns of a call.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from parley.agent.config import AgentConfig
from parley.canaries.asking import AGENT
from parley.chat import ChatMessage
from parley.launcher.larger_model import ENOUGH_CORES, keep_advice
from parley.launcher.options import ROOT
from parley.llm.known_models import DEMONSTRATION, KNOWN_MODELS
from parley.llm.messages import Completed, GenerateRequest, Sampling, TextDelta
from parley.llm.service import ChatService
from parley.models.qwen3 import load_chat_service, warm_up
from parley.protocol import Tool
from parley.runtime.parameters import Parameters
from parley.runtime.repository import read_parameters
from parley.runtime.sessions import count_cores
from parley.runtime.weights import models_dir, weights_variable

PROFILE = "open"
_MODEL = "qwen3"
_LIMIT_S = 300.0
_FIRST_WORDS = 8
"""Tokens of the first piece that is spoken."""
_REST_MS = 450.0
"""What recognition, the end of the turn, and the first audio of the voice take of the profile's goal."""
_LEAST_PER_S = 8.0
"""Tokens; speech has about five."""
_TOOLS = [
    Tool(
        name=name,
        description=description,
        parameters={
            "type": "object",
            "properties": {key: {"type": "string"} for key in keys},
            "required": [*keys],
        },
    )
    for name, description, keys in (
        ("find_table", "Find a free table", ("day", "time", "people")),
        ("book_table", "Book a table that is free", ("day", "time", "people", "name")),
        ("cancel_booking", "Cancel a booking", ("name", "day")),
    )
]
_SAID = (
    "Hello, who is this?",
    "Are you open on Sunday?",
    "Is there parking?",
    "What is on the menu?",
    "Thanks!",
)


@dataclass(frozen=True)
class Measured:
    """Times of one model."""

    model: str
    cold_ms: float
    """To the first token of a prompt of which nothing is in the cache."""
    first_token_ms: float
    """The same within a conversation: the median."""
    tokens_per_s: float

    def in_time(self, goal_ms: float) -> bool:
        """Whether the first words can be heard within ``goal_ms`` of the end of the user's speech."""
        first_words_ms = self.first_token_ms + 1000 * _FIRST_WORDS / self.tokens_per_s
        return first_words_ms + _REST_MS <= goal_ms and self.tokens_per_s >= _LEAST_PER_S


def choose(measured: Sequence[Measured], goal_ms: float, cores: float) -> str:
    """The model to use, empty if none is fast enough; the models are in the order of their size."""
    fit = [one.model for one in measured if one.in_time(goal_ms)]
    return "" if not fit else fit[-1 if cores >= ENOUGH_CORES else 0]


def advise(measured: Sequence[Measured], goal_ms: float, cores: float) -> str:
    """What to use, in words."""
    chosen, larger = choose(measured, goal_ms, cores), choose(measured, goal_ms, ENOUGH_CORES)
    if not chosen:
        return "None answers in time here: use a model elsewhere (docs/llm.md), or another machine."
    setting = f"{weights_variable(_MODEL)}={larger}"
    if chosen == larger:
        return f"Use {larger}: {setting}"
    return (
        f"Use {chosen}. {larger} answers in time by itself ({setting}), but in calls recognition and voice "
        f"need the {cores:g} cores too; it is advised from {ENOUGH_CORES} on."
    )


def settings_for(model: str) -> Parameters:
    """The settings with which the profile serves a known model."""
    environment = {**os.environ, weights_variable(_MODEL): model}
    parameters = read_parameters(ROOT / "model_repository" / _MODEL, PROFILE, environment)
    assert parameters is not None
    return parameters


async def measure(model: str, chat: ChatService, config: AgentConfig) -> Measured:
    """Hold a conversation with a model that is loaded."""
    messages = [ChatMessage(role="system", content=config.system_prompt)]
    first_ms: list[float] = []
    tokens, writing_s = 0, 0.0
    for number, said in enumerate(_SAID):
        messages.append(ChatMessage(role="user", content=said))
        request = GenerateRequest(
            request_id=f"advice-{number}",
            messages=list(messages),
            tools=_TOOLS,
            sampling=Sampling(max_tokens=48),
            cache_salt="advice",
        )
        began = last = time.perf_counter()
        first, text = 0.0, ""
        async for event in chat.generate(request):
            last = time.perf_counter()
            first = first or last
            if isinstance(event, TextDelta):
                text += event.text
            elif isinstance(event, Completed):
                tokens += max(0, event.completion_tokens - 1)
        first_ms.append(1000 * (first - began))
        writing_s += last - first
        messages.append(ChatMessage(role="assistant", content=text or "One moment."))
    return Measured(
        model,
        cold_ms=round(first_ms[0]),
        first_token_ms=round(statistics.median(first_ms[1:])),
        tokens_per_s=round(tokens / max(writing_s, 0.001), 1),
    )


async def _measure_alone(model: str, config: AgentConfig) -> Measured:
    chat, engine = load_chat_service(settings_for(model), "")
    try:
        await warm_up(chat)  # as the server does
        return await measure(model, chat, config)
    finally:
        await engine.shutdown()


def _measure_in_a_process(model: str) -> Measured | None:
    """None: it cannot be loaded here; its last words are on standard error."""
    command = [sys.executable, "-m", "parley.launcher.advice", "--measure", model]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=True)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        said = "" if isinstance(error, subprocess.TimeoutExpired) else error.stderr.strip()[-600:]
        print(f"{model} cannot be measured: {error}\n{said}", file=sys.stderr)
        return None
    return Measured(**json.loads(ended.stdout.strip().splitlines()[-1]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and advise; exit status 1: no model was measured."""
    parser = argparse.ArgumentParser(prog="parley models --advise", description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", action="store_true", help=argparse.SUPPRESS)  # for starts from now on
    parser.add_argument("--measure", choices=KNOWN_MODELS, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    agent = read_parameters(ROOT / "model_repository" / AGENT, PROFILE, os.environ)
    assert agent is not None
    config = AgentConfig.from_parameters(agent)
    if args.measure:
        print(json.dumps(asdict(asyncio.run(_measure_alone(args.measure, config)))))
        return 0
    folder = models_dir(settings_for(""))
    candidates = [name for name in KNOWN_MODELS if not name.startswith("tiny")]
    for name in candidates:
        if not (folder / name).is_dir():
            print(f"{name} is not here: make fetch MODEL={name}", file=sys.stderr)
    present = [name for name in candidates if (folder / name).is_dir()]
    measured = [one for name in present if (one := _measure_in_a_process(name)) is not None]
    cores, goal_ms = count_cores(), config.answer_goal_ms
    advice = advise(measured, goal_ms, cores)
    if args.keep:
        keep_advice(folder, choose(measured, goal_ms, cores), is_complete=0 < len(measured) == len(present))
    if args.json:
        found = [{**asdict(one), "in_time": one.in_time(goal_ms)} for one in measured]
        print(json.dumps({"cores": cores, "goal_ms": goal_ms, "models": found, "advice": advice}))
    else:
        print(f"{'model':26}{'first token: new':>18}{'in a call':>12}{'tokens/s':>10}  in time")
        for one in measured:
            note = f" ({DEMONSTRATION})" if KNOWN_MODELS[one.model].is_demonstration else ""
            print(
                f"{one.model:26}{one.cold_ms:>15.0f} ms{one.first_token_ms:>9.0f} ms{one.tokens_per_s:>10.1f}"
                f"  {'yes' if one.in_time(goal_ms) else 'no'}{note}"
            )
        print(advice)
    return 0 if measured else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # which ends the child too
    sys.exit(main())
