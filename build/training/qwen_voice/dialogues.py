"""Conversations to learn from, drawn at random from the library.

Those of one session share its system prompt and its tools; each begins with them anew.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from parley.chat import ChatMessage, ToolCall
from parley.protocol import Tool
from qwen_voice.agents import Agents
from qwen_voice.library import Pair, Persona, Request, Talk, ToolKind, assistant, schema_of
from qwen_voice.slots import Value

_SLOT = re.compile(r"\{(\w+)\}")
_MOST_TOOLS = 5
_OF_AGENTS = 0.85
_FILLERS = ("Um, ", "Okay, ", "So, ", "Right, ", "Well, ", "Hey, ", "Uh, ", "Hi, ", "Yes, ", "And ")
_CORRECTIONS = ("No, ", "Sorry, ", "Sorry, I meant ", "Wait, ", "Actually, ", "Hmm, ")
_REFUSALS = (
    "I am sorry, I cannot do that, but I can help with other things.",
    "I am afraid that is not something I can do.",
    "Sorry, I cannot do that from here.",
    "I cannot do that, I am sorry. Is there anything else?",
    "That is beyond what I can do, I am sorry.",
    "I would like to help, but I cannot do that.",
    "Unfortunately I cannot do that for you.",
)


@dataclass(frozen=True)
class Session:
    """What several conversations have in common, and those."""

    system: str
    tools: list[Tool]
    conversations: list[list[ChatMessage]]
    """Without the system prompt. Every message of the assistant is to be learned."""


@dataclass(frozen=True)
class _Bound:
    """A tool as one session has it."""

    kind: ToolKind
    tool: Tool


class Dialogues:
    """Draws sessions.

    Args:
        tools: all kinds of tools.
        talk: all that needs none.
        agents: those that more than half of the sessions are of.
        system: the agent's own system prompt, which a third of the other sessions have.
        seed: the same seed gives the same sessions.
    """

    def __init__(self, tools: Sequence[ToolKind], talk: Talk, agents: Agents, system: str, seed: int) -> None:
        self._tools = list(tools)
        self._talk = talk
        self._agents = agents
        self._system = system
        self._random = random.Random(seed)

    def session(self, conversations: int) -> Session:
        """The next session."""
        r = self._random
        if r.random() < _OF_AGENTS:
            return self._agent_session(conversations)
        persona = r.choice(self._talk.personas) if r.random() < 0.2 else None
        if persona:
            system = persona.prompt
        else:
            system = self._system if r.random() < 0.4 else r.choice(self._talk.systems)
        bound = [] if r.random() < 0.15 else [self._bind(kind) for kind in self._some_tools()]
        drawn = [self._conversation(bound, persona) for _ in range(conversations)]
        return Session(system, [one.tool for one in bound], drawn)

    def _agent_session(self, conversations: int) -> Session:
        r, agents = self._random, self._agents
        kind = r.choice(agents.kinds)
        tools = [*kind.tools, *agents.ending_tools(r)]
        drawn = [agents.conversation(kind, tools, self._user, r) for _ in range(conversations)]
        return Session(r.choice(kind.instructions), tools, drawn)

    def _some_tools(self) -> list[ToolKind]:
        """A few, often of one area: those are easily mistaken for each other."""
        r = self._random
        size = r.choice((1, 2, 3, 3, 3, 4, _MOST_TOOLS))
        first = r.choice(self._tools)
        among = [kind for kind in self._tools if kind.area == first.area] if r.random() < 0.6 else self._tools
        return r.sample([first, *r.sample([kind for kind in among if kind is not first], size - 1)], size)

    def _bind(self, kind: ToolKind) -> _Bound:
        r = self._random
        schema = schema_of(kind.arguments, described=r.random() < 0.75)
        return _Bound(
            kind, Tool(name=r.choice(kind.names), description=r.choice(kind.about), parameters=schema)
        )

    def _conversation(self, bound: Sequence[_Bound], persona: Persona | None) -> list[ChatMessage]:
        r = self._random
        messages: list[ChatMessage] = []
        wanted = r.choice((1, 1, 2, 2, 3))
        kinds: list[tuple[float, Callable[[], list[ChatMessage]]]] = [
            (0.09 if bound else 0.3, lambda: self._said(r.choice(self._talk.fixed))),
            (0.14 if bound else 0.4, lambda: self._said(r.choice(self._talk.open))),
            (0.005 if bound else 0.15, lambda: self._refused(bound)),
            (0.03 if bound else 0.1, self._remembered),
        ]
        if persona:
            kinds.append((0.15 if bound else 1.0, lambda: self._said(r.choice(persona.pairs))))
        if bound:
            kinds += [
                (0.58, lambda: self._called(r.choice(bound))),
                (0.08, lambda: self._asked_back(r.choice(bound))),
                (0.16, lambda: self._near(r.choice(bound))),
            ]
        for _ in range(wanted):
            (made,) = r.choices([make for _, make in kinds], [weight for weight, _ in kinds])
            messages += made()
        return messages

    def _said(self, pair: Pair) -> list[ChatMessage]:
        return [self._user(pair[0]), assistant(pair[1])]

    def _near(self, one: _Bound) -> list[ChatMessage]:
        """Something about what the tool is about, which asks for no call."""
        said, answer = self._random.choice(one.kind.near)
        values = one.kind.fill(self._random)
        return self._said((_filled(said, values), _filled(answer, values, written=True)))

    def _refused(self, bound: Sequence[_Bound]) -> list[ChatMessage]:
        """A request of what no tool here does."""
        r = self._random
        areas = {one.kind.area for one in bound}
        others = [kind for kind in self._tools if kind.area not in areas]
        if not others:
            return self._said(r.choice(self._talk.fixed))
        kind = r.choice(others)
        values = kind.fill(r)
        return [self._user(_filled(r.choice(kind.calls).text, values)), assistant(r.choice(_REFUSALS))]

    def _remembered(self) -> list[ChatMessage]:
        lines, answer = self._random.choice(self._talk.memory)
        messages = [
            ChatMessage(role="assistant", content=line) if number % 2 else self._user(line)
            for number, line in enumerate(lines)
        ]
        return [*messages, assistant(answer)]

    def _asked_back(self, one: _Bound) -> list[ChatMessage]:
        """Something is missing; often the caller then says all of it."""
        r = self._random
        if not one.kind.missing:
            return self._called(one)
        asked, question = r.choice(one.kind.missing)
        values = one.kind.fill(r)
        messages = [self._user(_filled(asked, values)), assistant(_filled(question, values, written=True))]
        return messages + self._called(one) if r.random() < 0.4 else messages

    def _called(self, one: _Bound) -> list[ChatMessage]:
        r = self._random
        request = r.choice(one.kind.calls)
        given = {name: Value(str(value), value) for name, value in request.given.items()}
        values = one.kind.fill(r) | given
        arguments = _arguments(one.kind, request, values)
        messages = [self._user(_filled(request.text, values)), *self._answered(one, arguments, values)]
        if one.kind.follow and r.random() < 0.35:
            text = r.choice(one.kind.follow)
            fresh = one.kind.fill(r)
            changed = _arguments(one.kind, Request(text, {}), fresh)
            said = _filled(text, fresh)
            if r.random() < 0.2 and not said.startswith(("No", "And", "Actually", "Sorry")):
                said = r.choice(_CORRECTIONS) + said[0].lower() + said[1:]
            messages += [
                ChatMessage(role="user", content=said),
                *self._answered(one, arguments | changed, values | {name: fresh[name] for name in changed}),
            ]
        return messages

    def _answered(
        self, one: _Bound, arguments: dict[str, Any], values: dict[str, Value]
    ) -> list[ChatMessage]:
        """The call; what it returns and what is said then."""
        r = self._random
        call = ToolCall(id=f"call-{r.getrandbits(32)}", name=one.tool.name, arguments=arguments)
        result, spoken = r.choice(one.kind.results)
        return [
            ChatMessage(role="assistant", tool_calls=[call]),
            ChatMessage(role="tool", content=_filled(result, values, written=True), tool_call_id=call.id),
            assistant(_filled(spoken, values, written=True)),
        ]

    def _user(self, text: str) -> ChatMessage:
        """As a recogniser writes it: mostly with marks and capitals, sometimes without."""
        r = self._random
        style = r.random()
        if style < 0.12:
            text = r.choice(_FILLERS) + (
                text if text.startswith(("I ", "I'")) else text[0].lower() + text[1:]
            )
        elif style < 0.2:
            text = text.rstrip(".?!").lower()
        elif style < 0.26:
            text = text.rstrip(".?!")
        return ChatMessage(role="user", content=text)


def _arguments(kind: ToolKind, request: Request, values: dict[str, Value]) -> dict[str, Any]:
    """What a request means, in the order of the tool's arguments."""
    named = set(_SLOT.findall(request.text))
    arguments = {}
    for argument in kind.arguments:
        if argument.name in request.given:
            arguments[argument.name] = argument.typed(request.given[argument.name])
        elif argument.name in named:
            arguments[argument.name] = argument.typed(values[argument.name].meant)
    return arguments


def _filled(text: str, values: dict[str, Value], *, written: bool = False) -> str:
    """A text with its placeholders filled, as spoken or as written in answers."""
    filled = _SLOT.sub(lambda match: values[match[1]].written if written else values[match[1]].spoken, text)
    return filled[0].upper() + filled[1:] if text.startswith("{") and text[1:2].isalpha() else filled
