"""Whole agents, with instructions full of facts and several turns of a call: the file agents.toml."""

from __future__ import annotations

import json
import random
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parley.agent.ending import ACCEPTED, END_CALL, TRANSFER, EndingTools
from parley.chat import ChatMessage, ToolCall
from parley.protocol import EndingOptions, Tool, TransferTarget
from qwen_voice.library import assistant, read_argument
from qwen_voice.slots import Value, fill

_SLOT = re.compile(r"\{(\w+)(?::(said|clock))?\}")
Turn = tuple[str, str, str]
"""What is said, an argument of the call that follows, and the answer."""


@dataclass(frozen=True)
class AgentKind:
    """An agent, under several instructions, and its calls."""

    instructions: tuple[str, ...]
    tools: tuple[Tool, ...]
    slots: dict[str, Any]
    flows: tuple[str, ...]
    """Lines: ``> what the caller says``, ``= tool {arguments}``, ``< {result}``, or an answer."""


@dataclass(frozen=True)
class Agents:
    """All agents, and what is said to each of them."""

    kinds: tuple[AgentKind, ...]
    closings: tuple[Turn, ...]
    people: tuple[Turn, ...]
    thanks: tuple[tuple[str, str], ...]

    def endings(self, r: random.Random) -> list[Tool]:
        """The tools that end a call, as one session has them."""
        people = r.choice(("reception", "a colleague", "the office", "the owner"))
        target = TransferTarget(name=people, to="sip:office", description=r.choice(("", "for anything else")))
        options = EndingOptions(end_call=r.random() < 0.5, transfers=[target] if r.random() < 0.4 else [])
        return list(EndingTools(options).tools)

    def conversation(
        self, kind: AgentKind, tools: list[Tool], user: Callable[[str], ChatMessage], r: random.Random
    ) -> list[ChatMessage]:
        """A call of the agent. ``user`` writes as a recogniser does."""
        offered = {tool.name: tool for tool in tools}
        lines: list[str] = []
        for flow in r.sample(kind.flows, r.choice((1, 1, 1, 2))):
            lines += _filled(flow, kind.slots, r)
        if r.random() < 0.15:
            said, answer = r.choice(self.thanks)
            lines += [f"> {said}", answer]
        if r.random() < 0.3:
            lines += _ended(r.choice(self.closings), END_CALL if END_CALL in offered else "", "reason", {})
        elif TRANSFER in offered and r.random() < 0.3:
            (to,) = offered[TRANSFER].parameters["properties"]["to"]["enum"]
            lines += _ended(r.choice(self.people), TRANSFER, "summary", {"to": to})
        return list(_messages(lines, user, r))


def load_agents() -> Agents:
    """All agents.

    Raises:
        ValueError: an argument has a type that there is not.
    """
    read = tomllib.loads(Path(__file__).with_name("agents.toml").read_text(encoding="utf-8"))
    return Agents(
        kinds=tuple(_kind(one) for one in read["agent"]),
        closings=tuple((said, why, answer) for said, why, answer in read["closings"]),
        people=tuple((said, why, answer) for said, why, answer in read["people"]),
        thanks=tuple((said, answer) for said, answer in read["thanks"]),
    )


def _kind(read: dict[str, Any]) -> AgentKind:
    tools = []
    for name, (about, described) in read["tools"].items():
        arguments = [read_argument(*one) for one in described.items()]
        schema = {
            "type": "object",
            "properties": {one.name: one.schema for one in arguments},
            "required": [one.name for one in arguments if one.required],
        }
        tools.append(Tool(name=name, description=about, parameters=schema))
    instructions = tuple(" ".join(one.split()) for one in read["instructions"])
    flows = tuple(flow.strip() for flow in read["flows"].split("\n\n"))
    return AgentKind(instructions, tuple(tools), read["slots"], flows)


def _filled(flow: str, slots: dict[str, Any], r: random.Random) -> list[str]:
    values = {name: fill(slot, r) for name, slot in slots.items()}

    def form(match: re.Match[str], *, heard: bool) -> str:
        value, wanted = values[match[1]], match[2]
        if wanted == "clock":
            return _clock(value)
        return value.spoken if heard or wanted == "said" else value.written

    lines = []
    for line in flow.splitlines():
        heard = line.startswith(">")
        lines.append(_SLOT.sub(lambda match, heard=heard: form(match, heard=heard), line))  # type: ignore[misc]
    return lines


def _clock(value: Value) -> str:
    hour, minute = map(int, value.written.split(":"))
    return f"{(hour - 1) % 12 + 1}{f':{minute:02}' if minute else ''} {'pm' if hour >= 12 else 'am'}"


def _ended(turn: Turn, tool: str, argument: str, others: dict[str, str]) -> list[str]:
    said, why, answer = turn
    call = [f"= {tool} {json.dumps(others | {argument: why})}", f"< {ACCEPTED}"] if tool else []
    return [f"> {said}", *call, answer]


def _messages(lines: list[str], user: Callable[[str], ChatMessage], r: random.Random) -> Any:
    made = ""
    for line in lines:
        mark, _, text = line.partition(" ")
        if mark == ">":
            yield user(text[0].upper() + text[1:])
        elif mark == "=":
            name, _, arguments = text.partition(" ")
            made = f"call-{r.getrandbits(32)}"
            call = ToolCall(id=made, name=name, arguments=json.loads(arguments))
            yield ChatMessage(role="assistant", tool_calls=[call])
        elif mark == "<":
            result = json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False)
            yield ChatMessage(role="tool", content=result, tool_call_id=made)
        else:
            yield assistant(line[0].upper() + line[1:])
