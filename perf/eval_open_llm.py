"""Measure the language model of profile open: tool calls, turns that need none, and open questions.

    python -m perf eval-open-llm                     the held-out cases and the questions
    python -m perf eval-open-llm --set dev           what the prompt and the adapter are tuned on
    python -m perf eval-open-llm --weights FOLDER --recipe examples     a model that was not trained for it
    python -m perf eval-open-llm --weights FOLDER --recipe template     with its own chat template and tags

A call counts as right only if tool and arguments are; what the model should say is not judged, but printed.
The engine, the prompts and the parser are those of the model `qwen3`.

Exit status: 0 the set is reached (85 % of the calls, at most 3 % false calls, none malformed), 1 it is not.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from open_llm.cases import Case, Verdict, load, load_questions

from parley.agent.config import AgentConfig
from parley.chat import ChatMessage, ToolCall
from parley.errors import InvalidModelOutputError
from parley.llm.messages import Completed, GenerateRequest, TextDelta, ToolCalled
from parley.llm.service import ChatService
from parley.models.qwen3 import load_chat_service
from parley.runtime.parameters import Parameters
from parley.runtime.repository import read_parameters

REPOSITORY = Path(__file__).parents[1] / "model_repository"
PROFILE = "open"
WANTED = 0.85
MOST_FALSE = 0.03
MOST_WORDS = 60


@dataclass(frozen=True)
class Answer:
    """What the model has written."""

    text: str
    calls: list[ToolCall]
    problem: Verdict | None = None

    def judged(self, case: Case) -> Verdict:
        """Its first call counts; others are false."""
        if self.problem:
            return self.problem
        return "false call" if len(self.calls) > 1 else case.judge(self.calls[0] if self.calls else None)

    def __str__(self) -> str:
        return " ".join(filter(None, (self.text, *(f"{call.name} {call.arguments}" for call in self.calls))))


RECIPES = {
    "trained": {},
    "examples": {"PARLEY_QWEN3_TOOL_EXAMPLES": "true"},
    "template": {"PARLEY_QWEN3_TOOL_PARSER": "hermes", "PARLEY_QWEN3_GUIDED_TOOLS": "false"},
}


def settings(weights: Path | None, recipe: str) -> tuple[Parameters, AgentConfig]:
    """Of the model and of the agent, in the profile."""
    environment = dict(RECIPES[recipe])
    if weights:
        environment["PARLEY_QWEN3_WEIGHTS"] = str(weights.resolve())
    model = read_parameters(REPOSITORY / "qwen3", PROFILE, environment)
    agent = read_parameters(REPOSITORY / "voice_agent", PROFILE, {})
    assert model is not None
    assert agent is not None
    return model, AgentConfig.from_parameters(agent)


async def ask(chat: ChatService, config: AgentConfig, name: str, case: Case) -> Answer:
    """One answer."""
    system = ChatMessage(role="system", content=config.system_prompt)
    request = GenerateRequest(
        request_id=name,
        messages=[system, *case.messages],
        tools=case.tools,
        sampling=config.sampling,
        cache_salt="cases",
    )
    text, calls, problem = "", [], None
    try:
        async for event in chat.generate(request):
            if isinstance(event, TextDelta):
                text += event.text
            elif isinstance(event, ToolCalled):
                calls.append(event.call)
            elif isinstance(event, Completed) and event.finish_reason == "length" and not text:
                problem = "cut off"
    except InvalidModelOutputError as error:
        text, problem = str(error), "malformed"
    return Answer(text, calls, problem)


async def ask_all(chat: ChatService, config: AgentConfig, cases: Sequence[Case]) -> list[Answer]:
    """Four at a time."""
    places = asyncio.Semaphore(4)

    async def one(number: int, case: Case) -> Answer:
        async with places:
            return await ask(chat, config, f"case-{number}", case)

    return await asyncio.gather(*(one(number, case) for number, case in enumerate(cases)))


def report_tools(cases: Sequence[Case], answers: Sequence[Answer], *, everything: bool) -> bool:
    """Print what went wrong and how often; whether it is good enough."""
    counts: dict[bool, collections.Counter[Verdict]] = {
        True: collections.Counter(),
        False: collections.Counter(),
    }
    for case, answer in zip(cases, answers, strict=True):
        verdict = answer.judged(case)
        counts[bool(case.tool)][verdict] += 1
        if verdict != "right" or everything:
            print(f"{verdict:16} {case.said}\n{'':16} -> {answer}")
    for needed, counted in counts.items():
        kinds = ", ".join(f"{kind} {count}" for kind, count in counted.most_common())
        print(f"{'tool wanted' if needed else 'no tool wanted'}: {counted.total()}: {kinds}")
    wanted, talk = counts[True], counts[False]
    broken = wanted["malformed"] + talk["malformed"] + wanted["cut off"] + talk["cut off"]
    right, false = wanted["right"] / wanted.total(), talk["false call"] / talk.total()
    print(f"right calls {right:.0%}, false calls {false:.0%}, malformed or cut off {broken}")
    return right >= WANTED and false <= MOST_FALSE and not broken


def report_questions(cases: Sequence[Case], answers: Sequence[Answer]) -> bool:
    """Print the answers; whether there is one to each, and none is long."""
    fit = True
    for case, answer in zip(cases, answers, strict=True):
        words = len(answer.text.split())
        good = 0 < words <= MOST_WORDS
        fit = fit and good
        print(f"{case.said}\n    {answer.text}{'' if good else f'  <- {words} words'}")
    return fit


async def run(arguments: argparse.Namespace) -> bool:
    """Load the model and measure."""
    parameters, config = settings(arguments.weights, arguments.recipe)
    chat, engine = load_chat_service(parameters, "")
    try:
        cases = load(arguments.set)
        began = time.monotonic()
        good = report_tools(cases, await ask_all(chat, config, cases), everything=arguments.all)
        print(f"{time.monotonic() - began:.0f} s")
        if arguments.questions:
            questions = load_questions()
            good = report_questions(questions, await ask_all(chat, config, questions)) and good
    finally:
        await engine.shutdown()
    return good


def main() -> int:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--set", choices=("dev", "unseen", "held_out"), default="held_out")
    parser.add_argument("--weights", type=Path, help="another folder than the profile's")
    parser.add_argument(
        "--recipe", choices=RECIPES, default="trained", help="how the model learns of tools and answers"
    )
    parser.add_argument("--all", action="store_true", help="print what is right too")
    parser.add_argument("--no-questions", dest="questions", action="store_false")
    return 0 if asyncio.run(run(parser.parse_args())) else 1


if __name__ == "__main__":
    sys.exit(main())
