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
import re
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from parley.agent.config import AgentConfig
from parley.chat import ChatMessage, ToolCall
from parley.errors import InvalidModelOutputError
from parley.launcher.options import ROOT
from parley.llm.messages import Completed, GenerateRequest, TextDelta, ToolCalled
from parley.llm.service import ChatService
from parley.models.qwen3 import load_chat_service
from parley.protocol import Tool
from parley.runtime.parameters import Parameters
from parley.runtime.repository import read_parameters

_CASES = Path(__file__).parent / "open_llm"
_REPOSITORY = ROOT / "model_repository"
_PROFILE = "open"
_WANTED = 0.85
_MOST_FALSE = 0.03
_MOST_WORDS = 60
_RECIPES = {
    "trained": {},
    "examples": {"PARLEY_QWEN3_TOOL_EXAMPLES": "true"},
    "template": {"PARLEY_QWEN3_TOOL_PARSER": "hermes", "PARLEY_QWEN3_GUIDED_TOOLS": "false"},
}

Verdict = Literal["right", "wrong arguments", "wrong tool", "missed", "false call", "malformed", "cut off"]


@dataclass(frozen=True)
class Case:
    """One turn."""

    tools: list[Tool]
    messages: list[ChatMessage]
    tool: str = ""
    """That must be called; empty: none."""
    arguments: dict[str, Any] | None = None

    @property
    def said(self) -> str:
        """What the caller says last."""
        return self.messages[-1].content

    def judge(self, call: ToolCall | None) -> Verdict:
        """Compare a call with the one that is wanted."""
        if not self.tool:
            return "right" if call is None else "false call"
        if call is None:
            return "missed"
        if call.name != self.tool:
            return "wrong tool"
        return "right" if _fits(self.arguments or {}, call.arguments) else "wrong arguments"


def load(name: str) -> list[Case]:
    """All cases of a set: ``dev``, ``unseen`` or ``held_out``; ``dev.toml`` describes the format."""
    groups = tomllib.loads((_CASES / f"{name}.toml").read_text(encoding="utf-8"))["group"]
    return [case for group in groups for case in _group(group)]


def load_questions() -> list[Case]:
    """The open questions, without tools."""
    questions = (_CASES / "questions.txt").read_text(encoding="utf-8").splitlines()
    return [Case([], [ChatMessage(role="user", content=question)]) for question in questions]


def _group(group: dict[str, Any]) -> list[Case]:
    tools = [_tool(name, *described) for name, described in group["tools"].items()]
    cases = group["cases"]
    turns = [([], *call) for call in cases["calls"]] + cases["after"]
    wanted = [Case(tools, _messages(before, said), tool, args) for before, said, tool, args in turns]
    return wanted + [Case(tools, _messages([], said)) for said in cases["talk"]]


def _tool(name: str, description: str, properties: dict[str, Any]) -> Tool:
    schema = {
        "type": "object",
        "properties": {key.rstrip("?"): value for key, value in properties.items()},
        "required": [key for key in properties if not key.endswith("?")],
    }
    return Tool(name=name, description=description, parameters=schema)


def _messages(before: list[Any], said: str) -> list[ChatMessage]:
    messages = []
    for number, message in enumerate(before):
        if message[0] == "call":
            _, name, arguments, result = message
            call = ToolCall(id=f"call-{number}", name=name, arguments=arguments)
            messages.append(ChatMessage(role="assistant", tool_calls=[call]))
            messages.append(ChatMessage(role="tool", content=result, tool_call_id=call.id))
        else:
            messages.append(ChatMessage(role=message[0], content=message[1]))
    return [*messages, ChatMessage(role="user", content=said)]


def _fits(wanted: dict[str, Any], given: dict[str, Any]) -> bool:
    known = {name.rstrip("?") for name in wanted}
    if not {name for name, value in given.items() if value is not None} <= known:
        return False
    return all(
        _same(value, given.get(name.rstrip("?")))
        or (name.endswith("?") and given.get(name.rstrip("?")) is None)
        for name, value in wanted.items()
    )


def _same(wanted: Any, given: Any) -> bool:
    if isinstance(wanted, str):
        return isinstance(given, str | int) and bool(
            re.fullmatch(wanted, str(given).strip(" .,!?"), re.IGNORECASE)
        )
    return (
        type(given) in (int, float, bool)
        and isinstance(wanted, bool) == isinstance(given, bool)
        and given == wanted
    )


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


def settings(weights: Path | None, recipe: str) -> tuple[Parameters, AgentConfig]:
    """Of the model and of the agent, in the profile."""
    environment = dict(_RECIPES[recipe])
    if weights:
        environment["PARLEY_QWEN3_WEIGHTS"] = str(weights.resolve())
    model = read_parameters(_REPOSITORY / "qwen3", _PROFILE, environment)
    agent = read_parameters(_REPOSITORY / "voice_agent", _PROFILE, {})
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


def report_tools(cases: Sequence[Case], answers: Sequence[Answer]) -> bool:
    """Print what went wrong and how often; whether it is good enough."""
    counts = {needed: collections.Counter[Verdict]() for needed in (True, False)}
    for case, answer in zip(cases, answers, strict=True):
        verdict = answer.judged(case)
        counts[bool(case.tool)][verdict] += 1
        if verdict != "right":
            print(f"{verdict:16} {case.said}\n{'':16} -> {answer}")
    for needed, counted in counts.items():
        kinds = ", ".join(f"{kind} {count}" for kind, count in counted.most_common())
        print(f"{'tool wanted' if needed else 'no tool wanted'}: {counted.total()}: {kinds}")
    wanted, talk = counts[True], counts[False]
    broken = wanted["malformed"] + talk["malformed"] + wanted["cut off"] + talk["cut off"]
    right, false = wanted["right"] / wanted.total(), talk["false call"] / talk.total()
    print(f"right calls {right:.0%}, false calls {false:.0%}, malformed or cut off {broken}")
    return right >= _WANTED and false <= _MOST_FALSE and not broken


def report_questions(cases: Sequence[Case], answers: Sequence[Answer]) -> bool:
    """Print the answers; whether there is one to each, and none is long."""
    fit = True
    for case, answer in zip(cases, answers, strict=True):
        words = len(answer.text.split())
        good = 0 < words <= _MOST_WORDS
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
        good = report_tools(cases, await ask_all(chat, config, cases))
        print(f"{time.monotonic() - began:.0f} s")
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
        "--recipe", choices=_RECIPES, default="trained", help="how the model learns of tools and answers"
    )
    arguments = parser.parse_args()
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    return 0 if asyncio.run(run(arguments)) else 1
