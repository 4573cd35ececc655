"""Reads what was said and done in a recorded call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any, Literal

import msgspec

from parley.calls.folder import EVENTS


class TranscriptLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that one side said or did."""

    at_ms: int
    """In the recording."""
    kind: Literal["user", "keys", "agent", "tool", "event"]
    text: str
    """For people."""
    words: str = ""
    """What was said, typed or pressed."""
    is_typed: bool = False
    is_interrupted: bool = False
    """Whether the agent's words are only those before an interruption."""
    tool: str = ""
    """Name of the tool that was called."""
    arguments: dict[str, Any] | None = None
    """None: they were not kept."""
    output: Any = None
    """Result of the tool; None: there is none, or it was not kept."""


class CallTranscript(msgspec.Struct, frozen=True, kw_only=True):
    """What was said and done in a call."""

    lines: list[TranscriptLine]
    """By time."""
    median_answer_ms: int | None
    """From the end of the user's speech to the first audio of the answer. None: none was measured."""
    is_cut: bool
    """Whether there is more than was read."""


def read_transcript(folder: Path, max_bytes: int = -1) -> CallTranscript:
    """Read the events in the folder of a call; at most ``max_bytes``, if that is not negative.

    A line that is cut off, at the end of a call whose server died, is left out.

    Raises:
        OSError: the folder has no readable events.
    """
    found = []
    with (folder / EVENTS).open("rb") as file:
        for raw in file.readlines(max_bytes):
            with suppress(msgspec.DecodeError):
                found.append(msgspec.json.decode(raw, type=dict[str, Any]))
        is_cut = bool(file.read(1))
    results = {
        line["message"].get("call_id"): line["message"].get("output")
        for line in found
        if line.get("message", {}).get("type") == "tool_response" and line["message"].get("final", True)
    }
    events = [line["event"] for line in found if "event" in line]
    cut = {one["response_id"] for one in events if one.get("type") == "interrupted"}
    lines = [made for line in found for made in _read(line, results, cut)]
    times = [
        one["e2e_ms"] for one in events if one.get("type") == "metrics" and one.get("e2e_ms") is not None
    ]
    return CallTranscript(
        lines=sorted(lines, key=lambda line: line.at_ms),
        median_answer_ms=round(median(times)) if times else None,
        is_cut=is_cut,
    )


def printable(text: str) -> str:
    """A text that no terminal takes for commands, on one line."""
    return "".join(character if character.isprintable() else " " for character in text)


def _read(line: dict[str, Any], results: dict[str, Any], cut: set[str]) -> Iterator[TranscriptLine]:
    at_ms, content = line["at_ms"], line.get("event") or line.get("message") or {}
    match content:
        case {"type": "transcript" | "text" as kind, "text": words} if words:
            yield TranscriptLine(at_ms, "user", f"user: {words}", words, is_typed=kind == "text")
        case {"type": "dtmf"}:
            keys = content.get("digits", "")
            yield TranscriptLine(at_ms, "keys", f"user pressed {keys or 'keys'}", keys)
        case {"type": "response_done", "text": words} if words and content["response_id"] not in cut:
            yield TranscriptLine(at_ms, "agent", f"agent: {words}", words)
        case {"type": "interrupted", "spoken_text": words} if words:
            yield TranscriptLine(at_ms, "agent", f"agent: {words} (interrupted)", words, is_interrupted=True)
        case {"type": "tool_request" | "tool_run" as kind, "name": name}:
            output = content.get("output") if kind == "tool_run" else results.get(content.get("call_id", ""))
            arguments = content.get("arguments")
            shown = "" if arguments is None else msgspec.json.encode(arguments).decode()
            result = "" if output is None else f" → {msgspec.json.encode(output).decode()}"
            yield TranscriptLine(
                at_ms, "tool", f"tool {name}{shown}{result}", tool=name, arguments=arguments, output=output
            )
        case {"type": "step" | "collected" | "decision" | "error" | "closed" as kind}:
            rest = {name: value for name, value in content.items() if name != "type"}
            yield TranscriptLine(at_ms, "event", f"{kind} {msgspec.json.encode(rest).decode()}")
        case _:
            pass
