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
import sys
import time
import tomllib
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

    traps: int = 0
    spoken: int = 0
    """Traps that reached the voice."""
    true: int = 0
    held: int = 0
    """True sentences that did not, or not whole."""
    swapped: int = 0
    swapped_spoken: int = 0
    segment_ms: list[float] = field(default_factory=list)
    source_ms: list[float] = field(default_factory=list)

    def line(self, name: str) -> str:
        """For the table."""
        return (
            f"{name:12} |   {self.spoken:3} of {self.traps:3} "
            f"| {self.held:3} of {self.true:3} ({100 * self.held / self.true:4.1f} %) "
            f"|   {self.swapped_spoken} of {self.swapped}   "
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
                report.true += kind == "true"
                report.traps += kind == "traps"
                report.spoken += passed and kind == "traps"
                report.held += not passed and kind == "true"
                report.swapped += kind == "swapped"
                report.swapped_spoken += passed and kind == "swapped"
                if show and kind != "swapped" and passed != (kind == "true"):
                    print(f"    {'spoken' if passed else 'held back'}: {text}")


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sentences", type=Path, default=_SENTENCES, help="file of agents and sentences")
    parser.add_argument("--show", action="store_true", help="print what is wrongly spoken or held back")
    args = parser.parse_args()
    agents = tomllib.loads(args.sentences.read_text(encoding="utf-8"))["agent"]
    print("agent        | traps spoken | true held back     | swapped  | ms a sentence | ms for sources")
    total = Report()
    for agent in agents:
        report = Report()
        asyncio.run(judge(agent, report, show=args.show))
        print(report.line(agent["name"]))
        for name in ("traps", "spoken", "true", "held", "swapped", "swapped_spoken"):
            setattr(total, name, getattr(total, name) + getattr(report, name))
        total.segment_ms += report.segment_ms
        total.source_ms += report.source_ms
    print(total.line("all"))
    return int(total.spoken > 0 or total.held > _MOST_ALARMS * total.true)


if __name__ == "__main__":
    sys.exit(main())
