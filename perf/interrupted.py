"""What an agent of profile open says after it was interrupted: the 60 interruptions of ``interrupted.toml``.

    python -m perf interrupted                                   the profile's model
    python -m perf interrupted --weights models/qwen2.5-coder-1.5b-w8a8

The agent goes on with a call whose last answer was cut, and gets six kinds of text: a question about the
same thing, a correction, "yes, go on", another subject, "stop, I know", and a new fact. The conversation, the
engine and the prompts are those that serve; there is no server and no audio. Words are said again where four
or more in a row are some that were heard. Facts of the part that was not heard are looked for by patterns.

Exit status: 0 at most 2 % of the words are said again and 90 % of the facts are given where they are wanted,
1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import tomllib
from collections import Counter, defaultdict
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from eval_open_llm import settings

from parley.agent.config import AgentConfig
from parley.agent.conversation import Conversation
from parley.agent.metrics import FAMILIES, AgentMetrics, SessionMetrics
from parley.agent.ports import Engines
from parley.chat import ChatMessage
from parley.checkpoint import (
    CHECKPOINT_VERSION,
    HistoryState,
    Resume,
    SessionState,
    SpokenResponse,
    SpokenRound,
)
from parley.engines.base import ChatModel
from parley.llm.messages import cut_short
from parley.metrics import MetricsRecorder
from parley.models.qwen3 import load_chat_service, warm_up
from parley.protocol import (
    ResponseText,
    ServerEvent,
    Start,
    Text,
    Tool,
    ToolRequest,
    ToolResponse,
    TurnMetrics,
)

_AGENTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))["agent"]
_KINDS = {"question": True, "correction": False, "go_on": True, "change": False, "stop": False, "fact": True}
"""Kinds of interruptions, and whether the caller still needs the rest."""
_BOOK = Tool(
    name="book",
    description="Book for the caller, who has said a day and a name",
    parameters={
        "type": "object",
        "properties": {"day": {"type": "string"}, "name": {"type": "string"}},
        "required": ["day", "name"],
    },
)
_RUN = 4
_MOST_AGAIN = 0.02
_LEAST_GIVEN = 0.9


def resume(talk: dict[str, Any]) -> Resume:
    """A call whose last answer was cut."""
    heard, _, rest = talk["answer"].partition(" | ")
    messages = [
        ChatMessage(role="user", content=talk["asked"]),
        ChatMessage(role="assistant", content=cut_short(heard)),
    ]
    cut = SpokenResponse(
        response_id="cut",
        audio_ms=1_000,
        begin=1,
        count=1,
        rounds=[SpokenRound(text=f"{heard} {rest}")],
    )
    state = SessionState(version=CHECKPOINT_VERSION, turns=1)
    return Resume(state=state, history=HistoryState(messages=messages, responses=[cut]))


def judge(answer: str, talk: dict[str, Any], pattern: str) -> Counter[str]:
    """How many words are said again, facts of the rest given, and patterns found; of how many."""
    said, before = (
        re.findall(r"[\w']+", text.lower()) for text in (answer, talk["answer"].partition(" | ")[0])
    )
    runs = {tuple(before[at : at + _RUN]) for at in range(len(before) - _RUN + 1)}
    begins = [at for at in range(len(said) - _RUN + 1) if tuple(said[at : at + _RUN]) in runs]
    facts, right = (
        [re.search(one, answer, re.IGNORECASE) is not None for one in of]
        for of in (talk["facts"], [pattern] if pattern else [])
    )
    return Counter(
        again=len({at + step for at in begins for step in range(_RUN)}),
        words=len(said),
        given=sum(facts),
        facts=len(facts),
        right=sum(right),
        judged=len(right),
    )


async def interrupt(start: Start, cut: Resume, said: str, chat: ChatModel, config: AgentConfig) -> str:
    """The answer to an interruption."""
    texts: list[str] = []
    over = asyncio.Event()

    def emit(event: ServerEvent, audio: Any = None) -> None:  # noqa: ARG001 - there is none
        if isinstance(event, ResponseText):
            texts.append(event.text)
        elif isinstance(event, TurnMetrics):
            over.set()
        elif isinstance(event, ToolRequest):
            texts.append(f"[{event.name}]")
            response = ToolResponse(call_id=event.call_id, output={"booked": True})
            asyncio.get_running_loop().call_soon(call.on_message, response)

    mute: Any = SimpleNamespace(languages=["en"])
    unheard: Any = None
    figures = AgentMetrics(instance="perf", goal_ms=1_000.0, metrics=MetricsRecorder(FAMILIES))
    call = Conversation(
        f"call-{id(cut)}",
        start,
        Engines(unheard, chat, mute),
        config,
        emit=emit,
        hang_up=lambda _: None,
        begin_turn=lambda: None,
        metrics=SessionMetrics(figures, lambda _: None, lambda: "", ""),
        changed=lambda: None,
        whole=nullcontext,
        resume=cut,
    )
    call.open()
    call.on_message(Text(text=said))
    await over.wait()
    if tasks := call.close():
        await asyncio.wait(tasks)
    return "".join(texts)


async def run(weights: Path | None, *, show: bool) -> bool:
    """Ask the model, and print the table; whether the goal is reached."""
    parameters, config = settings(weights, "trained")
    chat, engine = load_chat_service(parameters, "")
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    try:
        await warm_up(chat)
        for agent, kind in product(_AGENTS, _KINDS):
            start = Start(
                system_prompt=agent["instructions"].strip(),
                tools=[_BOOK] if agent.get("tools") else [],
                output="text",
            )
            for talk in agent["talk"]:
                said, pattern = (talk[kind], "") if isinstance(talk[kind], str) else talk[kind]
                answer = await interrupt(start, resume(talk), said, chat, config)
                counts = judge(answer, talk, pattern)
                for name in (kind, "wanted" if _KINDS[kind] else "not wanted", "all"):
                    found[name].update(counts)
                if show:
                    print(f"{kind:10} {counts['given']}  {said}\n{'':13} {answer}", flush=True)
    finally:
        await engine.shutdown()
    print("           | words said again | facts not heard that are given | answers to the words")
    for name, of in found.items():
        again, given, right = (
            f"{of[one]} of {of[total]}"
            for one, total in (("again", "words"), ("given", "facts"), ("right", "judged"))
        )
        print(f"{name:10} | {again:16} | {given:30} | {right}")
    print(f"goal       | {f'all: ≤ {_MOST_AGAIN:.0%}':16} | {f'wanted: ≥ {_LEAST_GIVEN:.0%}':30} |")
    everything, wanted = found["all"], found["wanted"]
    said_again = everything["again"] <= _MOST_AGAIN * everything["words"]
    return said_again and wanted["given"] >= _LEAST_GIVEN * wanted["facts"]


def main() -> int:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--weights", type=Path, help="another folder than the profile's")
    parser.add_argument("--show", action="store_true", help="print every answer")
    arguments = parser.parse_args()
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    return 0 if asyncio.run(run(arguments.weights, show=arguments.show)) else 1
