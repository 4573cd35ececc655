"""No message of a client holds up the event loop, which all sessions share."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from typing import get_args

import msgspec
import pytest
from agent_fakes import FakeCall, calls
from work_loop import TooMuchWorkError, WorkLoop

from parley.agent.config import AgentConfig
from parley.checkpoint import CHECKPOINT_VERSION
from parley.llm.history import estimate_tokens
from parley.protocol import MAX_MESSAGE_BYTES, MAX_RESUME_BYTES, ClientMessage, Start, Text, Tool, ToolRequest
from parley.tools import schema

MOST_LINES = 1_000_000
"""Of Python in one turn of the loop: some tens of milliseconds."""
CONFIG = AgentConfig(context_tokens=8_192)
PROMPT_TOKENS = CONFIG.prompt_tokens // 2
"""Of what a client may put in front of the conversation."""
MOST_BYTES = MAX_MESSAGE_BYTES - 1_024
"""Of the part of a message that is made as large as it may be."""
TEXTS = {
    "sentences": "a. ",
    "letters": "a",
    "words": "a ",
    "spaces": " ",
    "digits": "1",
    "figures": "1:2/3-4 ",
    "numbers": "twenty one ",
    "punctuation": '."',
    "commas": "a, ",
    "dashes": "a\u2014",
    "ideographs": "\u6f22\u3002",
    "marks": "\u0301",
    "emoji": "\U0001f600",
    "tags": "<tool_call>",
    "brackets": "[a ",
    "lines": "\n",
}


def written(value: object) -> int:
    """Bytes of JSON."""
    return len(json.dumps(value, ensure_ascii=False).encode())


def filled(piece: str, characters: int) -> str:
    """A text of a given length that has words, or as much of it as fits into a message."""
    fitting = MOST_BYTES // (written(piece) - 2) * len(piece)
    return ("x " + piece * (characters // len(piece) + 1))[: min(characters, fitting)]


def many(make: Callable[[int], object], count: int) -> list:
    """As many items as fit into a message."""
    items, left = [], MOST_BYTES
    for index in range(count):
        items.append(make(index))
        left -= written(items[-1]) + 2
        if left < 0:
            return items[:-1]
    return items


def text_fields(piece: str, name: str, limits: tuple[int, ...], **others) -> list[dict]:
    """Messages with a text of each of the lengths, the longest of which is refused."""
    return [{name: filled(piece, limit), **others} for limit in limits]


def fitting(piece: str) -> str:
    """A text that takes nearly all of the room for a prompt."""
    return filled(piece, len(piece) * PROMPT_TOKENS // estimate_tokens(piece * 100) * 95)


def tools(piece: str) -> list[list[dict]]:
    """Sets of tools, each as large as it may be in one respect."""
    deep: dict = {}
    for _ in range(29):
        deep = {"items": deep}
    half = filled(piece, 100)
    schemas = [
        lambda count: {"properties": {f"p{i}": {} for i in range(count)}},
        lambda count: {"properties": {f"p{i}": {"type": "string"} for i in range(count)}},
        lambda count: {
            "properties": {f"p{i}": {} for i in range(count)},
            "required": [f"p{i}" for i in range(count)],
        },
        lambda count: {"properties": {"a": {"enum": list(range(count))}}},
        lambda count: {"properties": {"a": {"enum": [["a" * i] for i in range(min(80, count))]}}},
        lambda count: {"allOf": [{"anyOf": [{}] * 20}] * (count // 23)},
        lambda count: {"allOf": [{}] * (count - count // 100)},
        lambda count: {"allOf": [deep] * (count // 30)},
        lambda count: {"$defs": {"a": deep, **references(count)}, "$ref": "#/$defs/d0"},
        lambda count: {"properties": {half + str(i): {} for i in range(count // 4)}},
    ]
    return [
        *([{"name": "t", "parameters": largest(make)}] for make in schemas),
        [{"name": f"t{i}", "parameters": {"title": half + str(i), "allOf": [deep]}} for i in range(16)],
        [{"name": f"t{i}", "description": half, "parameters": {"enum": [half]}} for i in range(10)],
    ]


def largest(make: Callable[[int], dict]) -> dict:
    """The largest schema that leaves the room in a prompt which a conversation needs."""
    low, high = 1, schema.MAX_NODES
    while low < high:
        count = (low + high + 1) // 2
        written_tool = msgspec.json.encode(Tool(name="t", parameters=make(count))).decode()
        if estimate_tokens(written_tool) < PROMPT_TOKENS - 200:
            low = count
        else:
            high = count - 1
    return make(low)


def references(count: int) -> dict:
    """Definitions, each of which leads to the next."""
    chain = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(count)}
    return {**chain, f"d{count}": {"anyOf": [{"$ref": "#/$defs/a"}] * 2}}


def options(piece: str) -> list[dict]:
    """Options of a session that a later message can change too."""
    phrase = filled(piece, 90)
    return [
        {"system_prompt": fitting(piece)},
        {"system_prompt": filled(piece, 250_000)},
        *({"tools": one} for one in tools(piece)),
        {"phrases": [f"{phrase} {i}" for i in range(100)]},
        {"phrases": many(lambda i: f"{piece} {i}", 10_000)},
        {"phrases": [filled(piece, 100_000)]},
        {"silence": {"prompts": [filled(piece, 500)] * 8}},
        {"silence": {"prompts": many(lambda _: filled(piece, 100), 2_000)}},
        {"voice": filled(piece, 200)},
        {"tools": many(lambda i: {"name": f"t{i}"}, 20_000)},
    ]


def nested(piece: str) -> list:
    """Values of JSON."""
    deep: object = piece
    for _ in range(900):
        deep = [deep]
    items = many(lambda _: piece, 100_000)
    names = many(lambda i: f"{piece}{i:06}", 9_000)
    return [filled(piece, 250_000), items, dict.fromkeys(names, 1), deep]


def resumes(piece: str) -> list[dict]:
    """Sessions that go on."""
    user = {"role": "user", "content": filled(piece, 200)}
    long = filled(piece, 7_900)
    state = {"version": CHECKPOINT_VERSION, "turns": 3, "utterances": 3}
    response = {"response_id": "a", "audio_ms": 60_000, "begin": 0, "count": 1, "rounds": [{"text": long}]}
    return [
        {"state": state, "history": {"messages": [user] * 1_000}},
        {"state": {**state, "user": {"text": filled(piece, 60_000)}}},
        {"state": {**state, "queued": [{"text": filled(piece, 3_900)}] * 16}},
        {"state": {**state, "messages": [user] * 16, "unfinished": [4] * 16}},
        {"state": state, "history": {"messages": [user] * 8, "responses": [response] * 8}},
        {"state": state, "history": {"summary": fitting(piece)}},
    ]


MESSAGES = {
    "start": lambda piece: [
        *options(piece),
        *text_fields(piece, "greeting", (3_990, 250_000)),
        *({"resume": resume, "checkpoints": True} for resume in resumes(piece)),
    ],
    "update": options,
    "tool_response": lambda piece: [{"call_id": "call-1-1", "output": value} for value in nested(piece)],
    "control": lambda _: [{"action": action} for action in ("mute", "unmute", "hangup")],
    "playback": lambda piece: text_fields(piece, "response_id", (250_000,), played_ms=2**53),
    "text": lambda piece: text_fields(piece, "text", (3_990, 250_000)),
    "dtmf": lambda piece: [
        {"digits": digits} for digits in ("1" * 250_000, "1#" * 100, "1" * 64 + "#", filled(piece, 250_000))
    ],
    "say": lambda piece: text_fields(piece, "text", (3_990, 250_000)),
    "commit": lambda _: [{}],
    "discard": lambda _: [{}],
    "respond": lambda piece: [{"system_prompt": text} for text in (fitting(piece), filled(piece, 250_000))],
    "remember": lambda piece: [
        {"text": text, "role": "user"} for text in (fitting(piece), filled(piece, 250_000))
    ],
    "interrupt": lambda piece: text_fields(piece, "response_id", (250_000,)),
    "truncate": lambda piece: text_fields(piece, "response_id", (250_000,), played_ms=2**53),
}
"""For each message of the protocol the largest ones, refused ones among them, as a function of a text."""


def test_messages_of_the_protocol_each_have_their_largest_ones():
    assert set(MESSAGES) == {kind.__struct_config__.tag for kind in get_args(ClientMessage)}


async def handle(kind: str, raw: bytes) -> None:
    call = FakeCall(CONFIG)
    call.synthesizer.character_ms = 1
    if kind == "start":
        await call.start(raw, microphone=False)
    else:
        call.chat.answers.append(calls(("t", {})))
        await call.start(Start(checkpoints=True, tools=[Tool(name="t")]), microphone=False)
        if kind == "tool_response":
            await call.request(Text(text="go"), ToolRequest)
        call.send(raw)
    await asyncio.sleep(3)
    assert "internal_error" not in call.outlet.codes
    call.send(end=True)
    await asyncio.sleep(10)


def work(kind: str, message: dict) -> WorkLoop:
    """The loop after one message."""
    raw = json.dumps({"type": kind, **message}, ensure_ascii=False).encode()
    assert len(raw) <= (MAX_RESUME_BYTES if "resume" in message else MAX_MESSAGE_BYTES)
    schema._compiled.cache_clear()  # each is new to the server
    loop = WorkLoop(MOST_LINES)
    with asyncio.Runner(loop_factory=lambda: loop) as runner, suppress(TooMuchWorkError):
        runner.run(handle(kind, raw))
    return loop


@pytest.mark.parametrize("shape", TEXTS)
@pytest.mark.parametrize("kind", MESSAGES)
def test_largest_message_takes_a_bounded_turn_of_the_event_loop(kind, shape):
    for message in MESSAGES[kind](TEXTS[shape]):
        loop = work(kind, message)
        assert loop.excess is None, f"{kind} with {', '.join(message)}"


ARGUMENTS = {
    "unique objects": ({"uniqueItems": True}, [{"x": n} for n in range(3_000)]),
    "unique lists": ({"allOf": [{"uniqueItems": True}] * 50}, [[n] for n in range(3_000)]),
    "objects": ({"items": {"properties": {"x": {"anyOf": [{"type": "string"}] * 9}}}}, [{"x": 1}] * 3_000),
    "a refused list": ({"anyOf": [{"type": "string"}] * 400}, [1] * 3_000),
}
"""Schemas and arguments that a language model may write for them."""


async def call_tool(parameters: dict, arguments: dict) -> None:
    call = FakeCall(CONFIG, answers=[calls(("t", arguments))])
    await call.start(Start(tools=[Tool(name="t", parameters=parameters)]), microphone=False)
    call.send(Text(text="go"))
    await asyncio.sleep(3)
    assert "internal_error" not in call.outlet.codes
    assert len(call.outlet.of(ToolRequest)) + len(call.chat.requests) == 2, "it is called, or refused"
    call.send(end=True)
    await asyncio.sleep(10)


@pytest.mark.parametrize("shape", ARGUMENTS)
def test_arguments_of_a_tool_take_a_bounded_turn_of_the_event_loop(shape):
    schema, value = ARGUMENTS[shape]
    loop = WorkLoop(MOST_LINES)
    with asyncio.Runner(loop_factory=lambda: loop) as runner, suppress(TooMuchWorkError):
        runner.run(call_tool({"type": "object", "properties": {"a": schema}}, {"a": value}))
    assert loop.excess is None
