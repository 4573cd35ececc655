"""The tools and sentences that dialogues are made of: the files beside this one."""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parley.chat import ChatMessage
from qwen_voice.slots import Value, fill

FOLDER = Path(__file__).parent
_TYPES = ("string", "integer", "number", "boolean")
_UNSPOKEN = re.compile(r'["\n\r*#_`<>|{}\[\]\\]')
"""What the grammar of answers does not allow (parley.llm.python_calls.format)."""
Pair = tuple[str, str]


@dataclass(frozen=True)
class Argument:
    """One argument of a tool."""

    name: str
    schema: dict[str, Any]
    required: bool

    def typed(self, value: Any) -> Any:
        """The value as the schema requires it: a year is a text in one tool and a number in another."""
        if self.schema["type"] == "string":
            return str(value)
        return int(value) if self.schema["type"] == "integer" else value


@dataclass(frozen=True)
class Request:
    """A sentence that asks for a tool."""

    text: str
    given: dict[str, Any]
    """Arguments that the sentence means without a placeholder."""


@dataclass(frozen=True)
class ToolKind:
    """A tool, under several names, and what is said around it."""

    area: str
    names: tuple[str, ...]
    about: tuple[str, ...]
    arguments: tuple[Argument, ...]
    slots: dict[str, Any]
    calls: tuple[Request, ...]
    follow: tuple[str, ...]
    """Said after a call: the placeholders are new, all else is as it was."""
    missing: tuple[Pair, ...]
    """Requests that lack something, and what is asked back."""
    near: tuple[Pair, ...]
    """Sentences about the same things that want no call, and an answer."""
    results: tuple[Pair, ...]
    """What the tool returns, and what is said of it."""

    def fill(self, r: random.Random) -> dict[str, Value]:
        """A value for each placeholder."""
        return {name: fill(slot, r) for name, slot in self.slots.items()}


@dataclass(frozen=True)
class Persona:
    """A system prompt with facts, and what callers ask there."""

    prompt: str
    pairs: tuple[Pair, ...]


@dataclass(frozen=True)
class Talk:
    """What needs no tool."""

    fixed: tuple[Pair, ...]
    """Answers that must be right: who the assistant is, what it cannot know or do."""
    open: tuple[Pair, ...]
    """Questions of every kind, with short answers."""
    memory: tuple[tuple[tuple[str, ...], str], ...]
    """Lines in turn, the caller's first, and the answer to the last."""
    personas: tuple[Persona, ...]
    systems: tuple[str, ...]


def load_tools() -> list[ToolKind]:
    """All tools.

    Raises:
        ValueError: an argument has a type that there is not.
    """
    return [
        _tool(path.stem, described)
        for path in sorted((FOLDER / "tools").glob("*.toml"))
        for described in read(f"tools/{path.name}")["tool"]
    ]


def load_talk() -> Talk:
    """All that is said without tools."""
    found = read("talk.toml")
    return Talk(
        fixed=_pairs(found["fixed"]),
        open=_pairs(found["open"]),
        memory=tuple((tuple(lines), answer) for lines, answer in found["memory"]),
        personas=tuple(Persona(one["prompt"], _pairs(one["pairs"])) for one in found["personas"]),
        systems=tuple(found["systems"]),
    )


def assistant(text: str) -> ChatMessage:
    """Something said.

    Raises:
        ValueError: the grammar of answers would not let it be said.
    """
    if not text or not text[0].isalnum() or _UNSPOKEN.search(text):
        raise ValueError(f"{text!r} cannot be said")
    return ChatMessage(role="assistant", content=text)


def _tool(area: str, found: dict[str, Any]) -> ToolKind:
    return ToolKind(
        area=area,
        names=tuple(found["names"]),
        about=tuple(found["about"]),
        arguments=tuple(read_argument(name, described) for name, described in found["args"].items()),
        slots=found.get("slots", {}),
        calls=tuple(Request(one, {}) if isinstance(one, str) else Request(*one) for one in found["calls"]),
        follow=tuple(found.get("follow", ())),
        missing=_pairs(found.get("missing", ())),
        near=_pairs(found["near"]),
        results=_pairs(found["results"]),
    )


def read_argument(name: str, described: str) -> Argument:
    """An argument from its line in a file: ``name?`` and ``TYPE: description``."""
    kind, _, about = (part.strip() for part in described.partition(":"))
    schema: dict[str, Any]
    if "|" in kind:
        schema = {"type": "string", "enum": [choice.strip() for choice in kind.split("|")]}
    elif kind in _TYPES:
        schema = {"type": kind}
    else:
        raise ValueError(f"argument {name!r} has the type {kind!r}")
    if about:
        schema["description"] = about
    return Argument(name.rstrip("?"), schema, required=not name.endswith("?"))


def _pairs(read: Any) -> tuple[Pair, ...]:
    return tuple((str(first), str(second)) for first, second in read)


def schema_of(arguments: Sequence[Argument], *, described: bool = True) -> dict[str, Any]:
    """The schema of a tool's arguments.

    Without descriptions, but for those of formats, which cannot be kept to without.
    """
    properties = {one.name: dict(one.schema) for one in arguments}
    for schema in properties.values():
        if not described and "HH:MM" not in schema.get("description", ""):
            schema.pop("description", None)
    required = [one.name for one in arguments if one.required]
    return {"type": "object", "properties": properties, "required": required}


def read(name: str) -> dict[str, Any]:
    """A file of this folder."""
    return tomllib.loads((FOLDER / name).read_text(encoding="utf-8"))
