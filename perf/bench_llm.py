"""Measure how fast the language model of profile open is, in this process, as the model `qwen3` runs it.

    python perf/bench_llm.py                 with the threads of the profile
    python perf/bench_llm.py --threads 2

Prints the time until the first token of a prompt of 400 tokens that was never read, and of 30 more when these
are in the prefix cache (medians), and the tokens per second of one and of four answers at a time.
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

from parley.launcher.models import read_parameters
from parley.llm.engine import Engine, EngineRequest
from parley.llm.loading import load_chat_service

REPOSITORY = Path(__file__).parents[1] / "model_repository"
PROMPT, MORE = 400, 30
ROUNDS = 5
LENGTH = 96


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

    async def speed(self, answers: int) -> float:
        """Tokens per second of so many answers together."""
        prompts = [self.prompt() for _ in range(answers)]
        for prompt in prompts:
            await self.answer(prompt, 1)
        found = await asyncio.gather(*(self.answer(prompt, LENGTH) for prompt in prompts))
        return sum(count for _, _, count in found) / max(seconds for _, seconds, _ in found)


async def run(threads: int | None) -> None:
    """Load the model and measure."""
    environment = {"PARLEY_QWEN3_THREADS": str(threads)} if threads else {}
    parameters = read_parameters(REPOSITORY / "qwen3", "open", environment)
    assert parameters is not None
    began = time.monotonic()
    _, engine = load_chat_service(parameters, "")
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
        for answers in (1, 4):
            speeds = [await bench.speed(answers) for _ in range(3)]
            print(f"{answers} at a time: {statistics.median(speeds):.1f} tokens/s")
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
