"""Measure the tiny Qwen3 in vLLM: how many replies are exactly right.

    .venv/bin/python build/training/eval_tiny_llm.py --turns 500

The dialogues use sentences, names and seeds that training never saw. A reply counts only if it
equals the expected text to the letter and, where it is a tool call, if vLLM's ``hermes`` parser
reads the same call from it. Prints every wrong reply, and fails below 98 %.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from vllm import EngineArgs, SamplingParams
from vllm.tool_parsers import ToolParserManager
from vllm.v1.engine.llm_engine import LLMEngine

from tiny.dialogs import Dialogue, Reply, dialogue
from tiny.settings import setting

MODEL = Path(__file__).parents[2] / "models" / "tiny-qwen3"
REQUIRED = 0.98
MOST_TURNS = 24
MOST_TOKENS = 160


@dataclass(frozen=True)
class Case:
    """One reply to generate."""

    dialogue: Dialogue
    reply: Reply


@dataclass(frozen=True)
class Outcome:
    """What the model generated for one case."""

    case: Case
    text: str
    right: bool


def make_cases(turns: int, seed: int) -> list[Case]:
    """Test dialogues of one to :data:`MOST_TURNS` user turns, ``turns`` user turns in all."""
    rng = random.Random(f"test {seed}")
    cases: list[Case] = []
    while turns > 0:
        length = min(turns, rng.randint(1, MOST_TURNS))
        written = dialogue(rng, length, setting(rng), "test")
        cases += [Case(written, reply) for reply in written.replies]
        turns -= length
    return cases


def generate(model: Path, cases: list[Case]) -> tuple[list[Outcome], float]:
    """Generate all replies greedily; also return the milliseconds per engine step of one stream."""
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=str(model),
            dtype="float32",
            max_model_len=4096,
            max_num_seqs=16,
            kv_cache_memory_bytes=64 << 20,
            block_size=32,
            enforce_eager=True,
            disable_log_stats=True,
        )
    )
    tokenizer: Any = engine.get_tokenizer()
    sampling = SamplingParams(temperature=0.0, max_tokens=MOST_TOKENS)
    for number, case in enumerate(cases):
        ids = tokenizer.apply_chat_template(
            case.dialogue.prompt_for(case.reply),
            tools=case.dialogue.setting.tools or None,
            add_generation_prompt=True,
            enable_thinking=False,
            return_dict=False,
        )
        engine.add_request(str(number), {"prompt_token_ids": ids}, sampling)
    texts: dict[int, str] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                texts[int(output.request_id)] = output.outputs[0].text
    parser_class = ToolParserManager.get_tool_parser("hermes")
    outcomes = []
    for number, case in enumerate(cases):
        right = texts[number] == case.reply.text and _same_call(parser_class(tokenizer, []), texts[number])
        outcomes.append(Outcome(case, texts[number], right))
    return outcomes, _milliseconds_per_token(engine)


def _same_call(parser: Any, text: str) -> bool:
    """Whether the parser reads from ``text`` the call that is written in it, if any."""
    read = parser.extract_tool_calls(text, request=None)
    if not text.startswith("<tool_call>"):
        return not read.tools_called
    written = json.loads(text.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>"))
    return [
        {"name": call.function.name, "arguments": json.loads(call.function.arguments)}
        for call in read.tool_calls
    ] == [written]


def _milliseconds_per_token(engine: LLMEngine, tokens: int = 200) -> float:
    sampling = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    engine.add_request("speed", {"prompt_token_ids": list(range(100, 300))}, sampling)
    engine.step()
    begin = time.perf_counter()
    while engine.has_unfinished_requests():
        engine.step()
    return (time.perf_counter() - begin) / (tokens - 1) * 1e3


def _row(name: str, outcomes: list[Outcome]) -> float:
    right = sum(outcome.right for outcome in outcomes)
    share = right / max(1, len(outcomes))
    print(f"{name:28} {right:5} of {len(outcomes):5}  {share:7.2%}")
    return share


def report(outcomes: list[Outcome]) -> bool:
    """Print the errors and the shares; whether they are good enough."""
    for outcome in outcomes:
        if not outcome.right:
            messages = outcome.case.dialogue.prompt_for(outcome.case.reply)
            print(f"{outcome.case.reply.intent}: {json.dumps(messages[-3:], ensure_ascii=False)}")
            print(f"  expected {outcome.case.reply.text!r}\n  got      {outcome.text!r}\n")
    by_intent = collections.defaultdict(list)
    for outcome in outcomes:
        by_intent[outcome.case.reply.intent].append(outcome)
    for intent in sorted(by_intent):
        _row(intent, by_intent[intent])
    everything = _row("all replies", outcomes)
    held_out = _row("unseen sentences or names", [one for one in outcomes if one.case.reply.unseen])
    return min(everything, held_out) >= REQUIRED


def main() -> int:
    """Parse the command line and evaluate."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--turns", type=int, default=500, help="user turns in all")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    outcomes, milliseconds = generate(args.model, make_cases(args.turns, args.seed))
    good = report(outcomes)
    print(f"one stream: {milliseconds:.1f} ms per token")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
