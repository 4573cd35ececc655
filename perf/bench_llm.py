"""Measure how fast the language model of profile open is, in this process, as the model `qwen3` runs it.

    python -m perf bench-llm                 with the threads of the profile
    python -m perf bench-llm --threads 2

Prints the time until the first token of a prompt of 400 tokens that was never read, and of 30 more when these
are in the prefix cache (medians); the tokens per second of answers to open questions, one and four at a time,
and how long a call of a tool takes, both with the prompt in the cache.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import msgspec
from open_llm.cases import Case, load, load_questions

from parley.agent.config import AgentConfig
from parley.chat import ChatMessage
from parley.llm.engine import Engine, EngineRequest
from parley.llm.messages import Completed, GenerateRequest, Sampling, TextDelta
from parley.llm.service import ChatService
from parley.models.qwen3 import load_chat_service
from parley.runtime.repository import read_parameters

REPOSITORY = Path(__file__).parents[1] / "model_repository"
PROMPT, MORE = 400, 30
ROUNDS = 5


class Bench:
    """Sends prompts that no other has sent.

    Args:
        engine: the model's.
    """

    def __init__(self, engine: Engine[EngineRequest]) -> None:
        self._engine = engine
        self._count = 0

    def prompt(self) -> list[int]:
        """Token ids that begin like no other prompt."""
        self._count += 1
        return [
            300 + self._count,
            *(1_000 + (7 * place + self._count) % 5_000 for place in range(PROMPT - 1)),
        ]

    async def answer(self, prompt: Sequence[int], tokens: int) -> tuple[float, float, int]:
        """Seconds until the first token and from there to the last, and how many came after the first."""
        self._count += 1
        began = time.perf_counter()
        first = 0.0
        written = 0
        request = EngineRequest(f"bench-{self._count}", prompt, tokens)
        async for progress in self._engine.generate(request):
            if progress.tokens and not first:
                first = time.perf_counter()
                written -= progress.tokens
            written += progress.tokens
        return first - began, time.perf_counter() - first, written


class Talk:
    """Asks what callers ask.

    Args:
        chat: the model.
    """

    def __init__(self, chat: ChatService) -> None:
        self._chat = chat
        self._count = 0
        agent = read_parameters(REPOSITORY / "voice_agent", "open", {})
        assert agent is not None
        config = AgentConfig.from_parameters(agent)
        self._system = ChatMessage(role="system", content=config.system_prompt)
        self._sampling = config.sampling

    def request(self, case: Case) -> GenerateRequest:
        """What the agent would send; its id is given when it is asked."""
        return GenerateRequest(
            request_id="",
            messages=[self._system, *case.messages],
            tools=case.tools,
            sampling=self._sampling,
            cache_salt="talk",
        )

    async def read(self, request: GenerateRequest) -> None:
        """Let the model read the prompt, so that it is in the cache."""
        await self.answer(msgspec.structs.replace(request, sampling=Sampling(max_tokens=1)))

    async def answer(self, request: GenerateRequest) -> tuple[float, float, int]:
        """Seconds of the whole, seconds since the first text, and how many tokens came in all."""
        self._count += 1
        began = time.perf_counter()
        first = 0.0
        tokens = 0
        async for event in self._chat.generate(
            msgspec.structs.replace(request, request_id=f"talk-{self._count}")
        ):
            if isinstance(event, TextDelta) and not first:
                first = time.perf_counter()
            elif isinstance(event, Completed):
                tokens = event.completion_tokens
        ended = time.perf_counter()
        return ended - began, ended - (first or ended), tokens


async def speed(talk: Talk, at_once: int) -> float:
    """Tokens per second of concurrent answers together."""
    requests = [talk.request(case) for case in load_questions()]
    written, seconds = 0, 0.0
    for start in range(0, len(requests), at_once):
        together = requests[start : start + at_once]
        for request in together:
            await talk.read(request)
        found = await asyncio.gather(*map(talk.answer, together))
        written += sum(tokens - 1 for _, _, tokens in found)
        seconds += max(lasted for _, lasted, _ in found)
    return written / seconds


async def call_seconds(talk: Talk) -> float:
    """How long one call of a tool takes (median)."""
    found = []
    for request in (talk.request(case) for case in load("dev") if case.tool):
        await talk.read(request)
        found.append((await talk.answer(request))[0])
    return statistics.median(found)


async def run(threads: int | None) -> None:
    """Load the model and measure."""
    environment = {"PARLEY_QWEN3_THREADS": str(threads)} if threads else {}
    parameters = read_parameters(REPOSITORY / "qwen3", "open", environment)
    assert parameters is not None
    began = time.monotonic()
    chat, engine = load_chat_service(parameters, "")
    print(f"loaded in {time.monotonic() - began:.1f} s, threads {parameters.text('threads', '')}")
    try:
        bench = Bench(engine)
        await bench.answer(bench.prompt(), 8)
        cold, cached = [], []
        for _ in range(ROUNDS):
            prompt = bench.prompt()
            cold.append((await bench.answer(prompt, 1))[0])
            cached.append((await bench.answer([*prompt, *prompt[1 : MORE + 1]], 1))[0])
        print(f"first token: {PROMPT} tokens cold {statistics.median(cold) * 1e3:.0f} ms")
        print(f"first token: {MORE} more, cached {statistics.median(cached) * 1e3:.0f} ms")
        talk = Talk(chat)
        for at_once in (1, 4):
            print(f"answers, {at_once} at a time: {await speed(talk, at_once):.0f} tokens/s")
        print(f"call of a tool: {await call_seconds(talk) * 1e3:.0f} ms")
    finally:
        await engine.shutdown()


def main() -> int:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, help="for one matrix operation")
    asyncio.run(run(parser.parse_args().threads))
    return 0


if __name__ == "__main__":
    sys.exit(main())
