"""Whole agents, with instructions full of facts and several turns of a call: the file agents.toml."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from parley.agent.ending import ACCEPTED, END_CALL, TRANSFER, EndingTools
from parley.agent.retrieval import format_passages
from parley.chat import ChatMessage, ToolCall
from parley.knowledge.passages import Passage
from parley.protocol import EndingOptions, Tool, TransferTarget
from qwen_voice.library import assistant, read, read_argument, schema_of
from qwen_voice.slots import Value, fill

_SLOT = re.compile(r"\{(\w+)(?::(said|clock))?\}")


@dataclass(frozen=True)
class AgentKind:
    """An agent, under several instructions, and its calls."""

    instructions: tuple[str, ...]
    tools: tuple[Tool, ...]
    slots: dict[str, Any]
    flows: tuple[str, ...]
    """Lines as agents.toml explains them."""


@dataclass(frozen=True)
class Agents:
    """All agents, and what is said to each of them."""

    kinds: tuple[AgentKind, ...]
    greetings: list[str]
    thanks: list[tuple[str, str]]
    endings: dict[str, list[tuple[str, str, str]]]
    """By the tool that ends the call: what is said, why it ends, and the answer."""

    def ending_tools(self, r: random.Random) -> list[Tool]:
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
        parts = r.sample(kind.flows, r.choice((1, 1, 1, 2)))
        if r.random() < 0.15:
            parts.append("> {}\n{}".format(*r.choice(self.thanks)))
        ended = r.choice((END_CALL, END_CALL, TRANSFER, "", ""))
        if ended == END_CALL or ended in offered:
            said, why, answer = r.choice(self.endings[ended])
            call = ""
            if ended in offered:
                places = offered[ended].parameters["properties"]
                given = {name: place.get("enum", [why])[0] for name, place in places.items()}
                call = f"= {ended} {json.dumps(given)}\n< {ACCEPTED}\n"
            parts.append(f"> {said}\n{call}{answer}")
        greeting = [assistant(r.choice(self.greetings))] if r.random() < 0.6 else []
        return greeting + [message for part in parts for message in _played(part, kind.slots, user, r)]


def load_agents() -> Agents:
    """All agents.

    Raises:
        ValueError: an argument has a type that there is not.
    """
    found = read("agents.toml")
    endings = {END_CALL: found["closings"], TRANSFER: found["people"]}
    return Agents(tuple(map(_kind, found["agent"])), found["greetings"], found["thanks"], endings)


def _kind(found: dict[str, Any]) -> AgentKind:
    tools = tuple(
        Tool(
            name=name, description=about, parameters=schema_of([read_argument(*one) for one in args.items()])
        )
        for name, (about, args) in found["tools"].items()
    )
    instructions = tuple(" ".join(text.split()) for text in found["instructions"])
    return AgentKind(instructions, tools, found["slots"], tuple(found["flows"].strip().split("\n\n")))


def _played(
    flow: str, slots: dict[str, Any], user: Callable[[str], ChatMessage], r: random.Random
) -> Iterator[ChatMessage]:
    values = {name: fill(slot, r) for name, slot in slots.items()}
    made = ""
    passages: list[Passage] = []
    for line in flow.splitlines():
        heard = line.startswith(">")
        filled = _SLOT.sub(lambda match, heard=heard: _form(values[match[1]], match[2], heard), line)  # type: ignore[misc]
        mark, _, text = filled.partition(" ")
        if mark == "~":
            source, _, content = text.partition(" | ")
            file, _, heading = source.partition(" > ")
            passages.append(Passage(file, heading, content, 1.0))
        elif mark == ">":
            if passages:
                yield ChatMessage(role="system", content=format_passages(passages))
                passages = []
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
            yield assistant(filled[0].upper() + filled[1:])


def _form(value: Value, wanted: str | None, heard: bool) -> str:
    if wanted == "clock":
        hour, minute = map(int, value.written.split(":"))
        return f"{(hour - 1) % 12 + 1}{f':{minute:02}' if minute else ''} {'pm' if hour >= 12 else 'am'}"
    return value.spoken if heard or wanted == "said" else value.written
