"""No message of a client holds up the event loop, which all sessions share."""

from __future__ import annotations

import asyncio
import json
from typing import get_args

import pytest
from agent_fakes import FakeCall
from work_loop import TooMuchWorkError, WorkLoop

from parley.agent.config import AgentConfig
from parley.protocol import MAX_MESSAGE_BYTES, MAX_RESUME_BYTES, ClientMessage, Start, Update, encode

MOST_LINES = 250_000
"""Of Python in one turn of the loop: some tens of milliseconds."""
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


def filled(piece: str, characters: int) -> str:
    """A text of a given length that has words."""
    return ("x " + piece * (characters // len(piece) + 1))[:characters]


def text_fields(piece: str, name: str, limits: tuple[int, ...], **others) -> list[dict]:
    """Messages with a text of each of the lengths, the longest of which is refused."""
    return [{name: filled(piece, limit), **others} for limit in limits]


def tools(piece: str) -> list[list[dict]]:
    """Sets of tools, each as large as it may be in one respect, and as the text for names and descriptions."""
    deep: dict = {}
    for _ in range(29):
        deep = {"items": deep}
    half = filled(piece, 500)
    return [
        [{"name": "t", "parameters": {"properties": {f"p{i}": {} for i in range(1_300)}}}],
        [{"name": "t", "parameters": {"properties": {f"p{i}": {"type": "string"} for i in range(500)}}}],
        [
            {"name": "t", "parameters": {"properties": {f"p{i}": {} for i in range(600)}, "required": names}}
            for names in [[f"p{i}" for i in range(600)]]
        ],
        [{"name": "t", "parameters": {"properties": {"a": {"enum": list(range(1_900))}}}}],
        [{"name": "t", "parameters": {"properties": {"a": {"enum": [[i] for i in range(900)]}}}}],
        [{"name": "t", "parameters": {"allOf": [{"anyOf": [{"type": "null"}] * 20}] * 30}}],
        [{"name": "t", "parameters": {"$defs": {"a": deep, **references(250)}, "$ref": "#/$defs/d0"}}],
        [{"name": f"t{i}", "parameters": {"title": half, "properties": {"a": deep}}} for i in range(20)],
        [{"name": f"t{i}", "description": half, "parameters": {"enum": [half] * 5}} for i in range(5)],
        [{"name": "t", "parameters": {"properties": {half + str(i): {} for i in range(20)}}}],
    ]


def references(count: int) -> dict:
    """Definitions, each of which leads to the next."""
    chain = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(count)}
    return {**chain, f"d{count}": {"anyOf": [{"$ref": "#/$defs/a"}] * 2}}


def options(piece: str) -> list[dict]:
    """Options of a session that a later message can change too."""
    phrase = filled(piece, 90)
    return [
        *text_fields(piece, "system_prompt", (14_000, 250_000)),
        *({"tools": one} for one in tools(piece)),
        {"phrases": [f"{phrase} {i}" for i in range(100)]},
        {"phrases": [f"{piece} {i}" for i in range(10_000)]},
        {"phrases": [filled(piece, 100_000)]},
        {"silence": {"prompts": [filled(piece, 500)] * 8}},
        {"silence": {"prompts": [filled(piece, 100)] * 2_000}},
        {"voice": filled(piece, 200)},
        {"tools": [{"name": f"t{i}"} for i in range(10_000)]},
    ]


def nested(piece: str) -> list:
    """Values of JSON."""
    deep: object = piece
    for _ in range(900):
        deep = [deep]
    return [filled(piece, 250_000), [piece] * 30_000, {f"{piece}{i}": i for i in range(15_000)}, deep]


def resumes(piece: str) -> list[dict]:
    """Sessions that go on."""
    user = {"role": "user", "content": filled(piece, 300)}
    long = filled(piece, 7_900)
    state = {"version": 2, "turns": 3, "utterances": 3}
    response = {"response_id": "a", "audio_ms": 60_000, "begin": 0, "count": 1, "rounds": [{"text": long}]}
    return [
        {"state": state, "history": {"messages": [user] * 1_000}},
        {"state": {**state, "user": {"text": filled(piece, 60_000)}}},
        {"state": {**state, "queued": [{"text": filled(piece, 3_900)}] * 16}},
        {"state": {**state, "messages": [user] * 16, "unfinished": [4] * 16}},
        {"state": state, "history": {"messages": [user] * 8, "responses": [response] * 8}},
        {"state": state, "history": {"summary": filled(piece, 14_000)}},
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
    "respond": lambda piece: text_fields(piece, "system_prompt", (14_000, 250_000)),
    "remember": lambda piece: text_fields(piece, "text", (14_000, 250_000), role="user"),
    "interrupt": lambda piece: text_fields(piece, "response_id", (250_000,)),
    "truncate": lambda piece: text_fields(piece, "response_id", (250_000,), played_ms=2**53),
}
"""For each message of the protocol the largest ones, refused ones among them, as a function of a text."""


def test_messages_of_the_protocol_each_have_their_largest_ones():
    assert set(MESSAGES) == {kind.__struct_config__.tag for kind in get_args(ClientMessage)}


async def handle(kind: str, raw: bytes) -> None:
    call = FakeCall(AgentConfig(context_tokens=8_192))
    call.synthesizer.character_ms = 1
    if kind == "start":
        await call.start(raw, microphone=False)
    else:
        await call.start(Start(checkpoints=True), microphone=False)
        call.send(raw)
    await asyncio.sleep(3)
    assert "internal_error" not in call.outlet.codes
    call.send(end=True)
    await asyncio.sleep(10)


def work(kind: str, message: dict) -> WorkLoop:
    """The loop after one message."""
    raw = json.dumps({"type": kind, **message}, ensure_ascii=False).encode()
    assert len(raw) <= (MAX_RESUME_BYTES if "resume" in message else MAX_MESSAGE_BYTES)
    loops = []

    def make() -> WorkLoop:
        loops.append(WorkLoop(MOST_LINES))
        return loops[0]

    with asyncio.Runner(loop_factory=make) as runner:
        try:
            runner.run(handle(kind, raw))
        except TooMuchWorkError:
            pass
    return loops[0]


@pytest.mark.parametrize("shape", TEXTS)
@pytest.mark.parametrize("kind", MESSAGES)
def test_largest_message_takes_a_bounded_turn_of_the_event_loop(kind, shape):
    for message in MESSAGES[kind](TEXTS[shape]):
        loop = work(kind, message)
        assert loop.excess is None, f"{kind} with {', '.join(message)}"


def test_scan_of_a_long_message_is_noticed():
    loop = WorkLoop(MOST_LINES)

    async def scan() -> None:
        json.scanner.py_make_scanner(json.JSONDecoder())(f'"{"x" * 10}"', 0)

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(scan())
    assert loop.longest > 0
