"""Train models/qwen2.5-coder-0.5b-voice, the adapter for calling functions and talking on the phone.

    PYTHONPATH=build nice .venv/bin/python build/training/train_qwen_voice.py

The base model is the published GGUF file; it is not changed. Dialogues are drawn at random from
build/training/qwen_voice, as the model ``qwen3`` renders them. The adapter is saved every ten minutes and
at the end.
``build/export.py qwen --adapter`` merges it into the weights that are served.

Exit status: 0 it is trained, 1 the base model, the adapter to begin with or the library cannot be read.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoTokenizer, Qwen2ForCausalLM

from comparison import ExportError
from qwen_gguf.conversion import find
from qwen_gguf.source import Source
from qwen_voice import adapter
from qwen_voice.adapter import load_base
from qwen_voice.agents import load_agents
from qwen_voice.dialogues import Dialogues
from qwen_voice.library import load_talk, load_tools
from qwen_voice.packing import Packer, Row

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "models" / "qwen2.5-coder-0.5b-instruct-gguf"
TOKENIZER = ROOT / "models" / "qwen2.5-coder-0.5b-w8a8"
OUT = ROOT / "models" / "qwen2.5-coder-0.5b-voice"

RANK = 8
ALPHA = 16
"""The shipped adapter has 13: it calls as well, and fewer facts are lost."""
WARM_UP_STEPS = 10
MOST_CONVERSATIONS = 16
SAVE_SECONDS = 600
LOG_STEPS = 2


@dataclasses.dataclass(frozen=True)
class Course:
    """How an adapter is trained."""

    base: str = "Qwen/Qwen2.5-Coder-0.5B-Instruct"
    """Name of the base model in the adapter's configuration."""
    first_layer: int = 4
    """Layers before it stay as they are: they read words, and training them costs time."""
    steps: int = 240
    minutes: float = 0
    """Training ends after so many; 0: after ``steps``."""
    rows: int = 4
    """Sessions of a step."""
    tokens: int = 700
    """Of a session, from which on no further conversation is added."""
    checked: int = 12
    """Sessions of another seed, on which the loss is measured."""
    rate: float = 2e-4
    """The largest learning rate."""
    seed: int = 1
    """Of the dialogues."""

    def __post_init__(self) -> None:
        if min(self.steps, self.rows, self.tokens, self.checked) < 1 or self.minutes < 0:
            raise ValueError("steps, rows, tokens and checked must be at least 1, and minutes not negative")

    def done(self, step: int, elapsed: float) -> float:
        """The part of the course that is over after ``elapsed`` seconds; 1: all of it."""
        return min(1.0, elapsed / (60 * self.minutes) if self.minutes else step / self.steps)


def row_loss(model: Qwen2ForCausalLM, row: Row) -> Tensor:
    """The loss of what the assistant says, summed over its tokens."""
    hidden = model.model(
        row.ids, attention_mask=row.seen, position_ids=row.positions, use_cache=False
    ).last_hidden_state[0]
    before = torch.roll(row.learned, -1)
    logits = model.lm_head(hidden[before]).float()
    return functional.cross_entropy(logits, row.ids[0, row.learned], reduction="sum")


def mean_loss(model: Qwen2ForCausalLM, rows: Sequence[Row]) -> float:
    """Of a token, without training."""
    with torch.no_grad():
        total = sum(row_loss(model, row).item() for row in rows)
    return total / sum(int(row.learned.sum()) for row in rows)


def rate(peak: float, step: int, done: float) -> float:
    """Learning rate of a step; ``done``: the part of the course that is over."""
    fall = max(0.05, 0.5 * (1 + math.cos(math.pi * done)))
    return peak * min(1.0, (step + 1) / WARM_UP_STEPS) * fall


def train(source: Path, tokens: Path, out: Path, *, begin: Path | None, course: Course) -> None:
    """Train, and write the adapter.

    Args:
        source: the published weights.
        tokens: folder of the tokenizer that was made of them.
        out: folder of the adapter.
        begin: an adapter to go on with; None: a new one.
        course: how it is trained.
    """
    seed = course.seed
    torch.manual_seed(seed)
    model = load_base(Source(find(source)), tokens)
    adapters = adapter.adapt(model, course.first_layer, RANK, ALPHA)
    if begin:
        adapter.load(adapters, begin)
    trained = list(adapter.parameters(adapters))
    layers = range(course.first_layer, model.config.num_hidden_layers)
    print(f"{sum(one.numel() for one in trained) / 1e6:.1f} million parameters are trained", flush=True)
    packer, tools, talk = Packer(AutoTokenizer.from_pretrained(tokens)), load_tools(), load_talk()
    drawn, other = (Dialogues(tools, talk, load_agents(), system_prompt(), one) for one in (seed, seed + 1))
    unseen = [packer.pack(other.session(MOST_CONVERSATIONS), course.tokens) for _ in range(course.checked)]
    print(f"loss before: {mean_loss(model, unseen):.3f}", flush=True)
    optimizer = torch.optim.AdamW(trained, lr=course.rate, betas=(0.9, 0.98), weight_decay=0.0)
    began = saved = time.monotonic()
    seen = step = 0
    while (done := course.done(step, time.monotonic() - began)) < 1:
        for group in optimizer.param_groups:
            group["lr"] = rate(course.rate, step, done)
        sessions = [drawn.session(MOST_CONVERSATIONS) for _ in range(course.rows)]
        packer.check(sessions[0])
        rows = [packer.pack(session, course.tokens) for session in sessions]
        learned = sum(int(row.learned.sum()) for row in rows)
        total = 0.0
        for row in rows:
            loss = row_loss(model, row) / learned
            torch.autograd.backward(loss)
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seen += sum(row.ids.numel() for row in rows)
        elapsed = time.monotonic() - began
        step += 1
        if step % LOG_STEPS == 0:
            print(
                f"{elapsed:5.0f} s  step {step}  loss {total:.3f}  {seen / elapsed:.0f} tokens/s",
                flush=True,
            )
        if time.monotonic() - saved > SAVE_SECONDS:
            adapter.save(adapters, out, course.base, layers)
            saved = time.monotonic()
    print(f"loss of other dialogues {mean_loss(model, unseen):.3f}", flush=True)
    adapter.save(adapters, out, course.base, layers)


def system_prompt() -> str:
    """That of the agent in profile open."""
    from parley.agent.config import AgentConfig
    from parley.runtime.repository import read_parameters

    parameters = read_parameters(ROOT / "model_repository" / "voice_agent", "open", {})
    assert parameters is not None
    return AgentConfig.from_parameters(parameters).system_prompt


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", type=Path, default=SOURCE, help="the GGUF file, or its folder")
    parser.add_argument("--tokenizer", type=Path, default=TOKENIZER, help="a folder made of it")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--begin", type=Path, metavar="FOLDER", help="go on with this adapter")
    for name, usual in dataclasses.asdict(Course()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(usual), default=usual)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    try:
        course = Course(**{name: getattr(args, name) for name in dataclasses.asdict(Course())})
        train(args.source, args.tokenizer, args.out, begin=args.begin, course=course)
    except (ExportError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
