"""What a session with ``facts`` speaks of sentences that are true to its sources, and of others.

The sentences of ``facts.toml`` go through the check that serves, word by word as a language model writes
them, without a server and without a model. A trap is spoken if all of it reaches the voice; a true sentence
is held back if any of it does not. The figures of swapped sentences are in the sources, of something else:
the check cannot find them. Ends with status 1 if a trap is spoken, or if more than 2 % of the true sentences
are held back.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parley.agent.answer_text import AnswerText, HeldBackError
from parley.agent.facts.checking import KnownFacts, SessionFacts
from parley.agent.memory import ToolRound
from parley.chat import ChatMessage

_SENTENCES = Path(__file__).parent / "facts.toml"
_MOST_ALARMS = 0.02


@dataclass
class Report:
    """Of some agents."""

    ends: Counter[tuple[str, bool]] = field(default_factory=Counter)
    """Sentences by kind, and by whether they reached the voice whole."""
    segment_ms: list[float] = field(default_factory=list)
    source_ms: list[float] = field(default_factory=list)

    def add(self, other: Report) -> None:
        """Add those of others."""
        self.ends += other.ends
        self.segment_ms += other.segment_ms
        self.source_ms += other.source_ms

    def share(self, kind: str, *, spoken: bool) -> str:
        """How many of how many."""
        return f"{self.ends[kind, spoken]:3} of {self.ends[kind, True] + self.ends[kind, False]:3}"

    @property
    def alarms(self) -> float:
        """Share of the true sentences that were held back."""
        return self.ends["true", False] / (self.ends["true", True] + self.ends["true", False])

    def line(self, name: str) -> str:
        """For the table."""
        return (
            f"{name:12} |   {self.share('traps', spoken=True)} "
            f"| {self.share('true', spoken=False)} ({100 * self.alarms:4.1f} %) "
            f"| {self.share('swapped', spoken=True)} "
            f"| {statistics.median(self.segment_ms):5.2f} / {max(self.segment_ms):5.2f} "
            f"| {statistics.median(self.source_ms):5.2f} / {max(self.source_ms):5.2f}"
        )


async def passes(text: str, known: KnownFacts) -> bool:
    """Whether all of a sentence reaches the voice."""
    segments: list[str] = []

    async def say(said: Sequence[str]) -> None:
        segments.extend(said)

    answer = AnswerText(ToolRound(), write=lambda _: None, say=say, facts=known, aloud=True)
    try:
        for word in text.split(" "):
            await answer.push(f"{word} ")
        await answer.finish(cut=False)
    except HeldBackError:
        return False
    return True


async def judge(agent: dict[str, Any], report: Report, *, show: bool) -> None:
    """Add an agent's sentences to a report."""
    for talk in agent["talk"]:
        said = [ChatMessage(role="user", content=text) for text in talk["user"]]
        results = [ChatMessage(role="tool", content=text) for text in talk.get("tools", [])]
        began = time.thread_time()
        known = await SessionFacts("en").check(agent["instructions"], [*said, *results])
        report.source_ms.append(1000 * (time.thread_time() - began))
        for kind in ("true", "traps", "swapped"):
            for text in talk.get(kind, []):
                began = time.thread_time()
                passed = await passes(text, known)
                report.segment_ms.append(1000 * (time.thread_time() - began))
                report.ends[kind, passed] += 1
                if show and kind != "swapped" and passed != (kind == "true"):
                    print(f"    {'spoken' if passed else 'held back'}: {text}")


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--show", action="store_true", help="print what is wrongly spoken or held back")
    args = parser.parse_args()
    agents = tomllib.loads(_SENTENCES.read_text(encoding="utf-8"))["agent"]
    print("agent        | traps spoken | true held back     | swapped  | ms a sentence | ms for sources")
    total = Report()
    for agent in agents:
        report = Report()
        asyncio.run(judge(agent, report, show=args.show))
        print(report.line(agent["name"]))
        total.add(report)
    print(total.line("all"))
    return int(total.ends["traps", True] > 0 or total.alarms > _MOST_ALARMS)
