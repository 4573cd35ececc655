"""What the language model of profile open says to questions about conversations, and in what time.

The conversations of ``decisions.toml`` go through the engine, prompts and queue of the model `qwen3`, without
a server. For each question: how often the likelier answer is the right one; how often one and the same answer
would be; and the AUC: of all pairs of a conversation with the answer yes and one with no, the share in which
the first has the higher probability. Then the time of eight questions behind a conversation that was just
answered, and of the first token of another call's answer, alone and while they run.

Exit status: 0 eight questions take at most 150 ms (median), 1 they take longer.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import statistics
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from eval_open_llm import settings

from parley.agent.decisions import make_question
from parley.chat import ChatMessage
from parley.llm.messages import Choices, Completed, GenerateRequest, Priority, Question, Sampling
from parley.llm.service import ChatService
from parley.models.qwen3 import load_chat_service
from parley.protocol import DecisionQuestion

_DATA = tomllib.loads((Path(__file__).parent / "decisions.toml").read_text("utf-8"))
_QUESTIONS = [DecisionQuestion(**one) for one in _DATA["question"]]
_GOAL_MS = 150.0


def conversation(*lines: str) -> list[ChatMessage]:
    """Messages, of which the last is the user's."""
    return [
        ChatMessage(role="user" if (len(lines) - place) % 2 else "assistant", content=text)
        for place, text in enumerate(lines)
    ]


async def ask(
    chat: ChatService,
    name: str,
    salt: str,
    messages: Sequence[ChatMessage],
    questions: Sequence[Question] = (),
) -> tuple[list[list[float]], int, float]:
    """Probabilities, prompt tokens that were not cached, and ms; without questions those of a first token."""
    request = GenerateRequest(
        request_id=name,
        messages=list(messages),
        questions=list(questions),
        sampling=Sampling(max_tokens=1),
        priority=Priority.BACKGROUND if questions else Priority.ANSWER,
        cache_salt=salt,
    )
    began, found, read = time.perf_counter(), list[list[float]](), 0
    async for event in chat.generate(request):
        if isinstance(event, Choices):
            found = event.probabilities
        elif isinstance(event, Completed):
            read = event.prompt_tokens - event.cached_tokens
    return found, read, (time.perf_counter() - began) * 1000


async def measure_answers(chat: ChatService, system: ChatMessage) -> None:
    """Print how right the answers are."""
    cases = [(group, *one) for group in _DATA["group"] for one in group["snippets"]]
    scores: dict[str, list[tuple[str, dict[str, float]]]] = defaultdict(list)
    for number, (group, true, *lines) in enumerate(cases):
        asked = [make_question(one) for one in _QUESTIONS]
        answers, _, _ = await ask(chat, f"case-{number}", "cases", [system, *conversation(*lines)], asked)
        for one, probabilities in zip(_QUESTIONS, answers, strict=True):
            right = "yes" if one.name in true.split() else "no"
            right = group.get(one.name, one.options[0]) if one.options else right
            scores[one.name].append((right, dict(zip(one.answers, probabilities, strict=True))))
    print(f"{len(cases)} conversations\nquestion   right  one answer  AUC")
    for name, of in scores.items():
        hits = statistics.mean(answer == max(scored, key=lambda one: scored[one]) for answer, scored in of)
        most = Counter(answer for answer, _ in of).most_common(1)[0][1] / len(of)
        yes, no = ([scored["yes"] for answer, scored in of if answer == one] for one in ("yes", "no"))
        pairs = [(high > low) + (high == low) / 2 for high, low in itertools.product(yes, no)]
        print(f"{name:10} {hits:5.0%} {most:11.0%}  {f'{statistics.mean(pairs):.2f}' if pairs else '-'}")


async def measure_time(chat: ChatService, system: ChatMessage, rounds: int) -> float:
    """Print the times; the median of eight questions in ms."""
    talk = [system, *conversation(*_DATA["talk"])]
    asked = [make_question(one) for one in _QUESTIONS[:8]]
    times: dict[str, list[float]] = defaultdict(list)
    for number in range(rounds):
        for name in (f"alone-{number}", f"beside-{number}"):
            await ask(chat, name, name, talk)
            running = asyncio.create_task(ask(chat, f"{name}-8", name, talk, asked))
            if name.startswith("alone"):
                _, read, ms = await running
                times["8 questions, ms"].append(ms)
                times["8 questions, tokens that were not cached"].append(read)
            _, _, ms = await ask(chat, f"{name}-other", f"{name}-other", talk)
            times[f"first token of another call, {name.partition('-')[0]}, ms"].append(ms)
            await running
    for name, values in times.items():
        print(f"{name:45} {statistics.median(values):6.0f}  ({min(values):.0f} to {max(values):.0f})")
    return statistics.median(times["8 questions, ms"])


async def run(rounds: int) -> float:
    """Load the model and measure."""
    parameters, config = settings(None, "trained")
    chat, engine = load_chat_service(parameters, "")
    system = ChatMessage(role="system", content=config.system_prompt)
    try:
        await measure_answers(chat, system)
        return await measure_time(chat, system, rounds)
    finally:
        await engine.shutdown()


def main() -> int:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20, help="of the measurement of times (default: 20)")
    rounds = parser.parse_args().rounds
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    return 0 if asyncio.run(run(rounds)) <= _GOAL_MS else 1
