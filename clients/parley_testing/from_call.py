"""Makes a scenario of a recorded call: what the caller said, and which tools were called."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from keyword import iskeyword
from pathlib import Path
from typing import Any

import msgspec

from parley.calls.database import CallInfo
from parley.calls.folder import EVENTS, open_calls
from parley.calls.transcripts import TranscriptLine, printable, read_transcript
from parley_client.agent_registration import to_toml
from parley_client.errors import ClientError
from parley_testing.scenario import ScenarioError

_BY_AGENT = frozenset({"agent_ended", "transferred"})
_ENDING = frozenset({"end_call", "transfer"})
"""Tools that no service stands behind."""
_BRACKETS = str.maketrans("[]", "()")


@dataclass
class _Turn:
    kind: str
    words: list[str]
    tools: list[TranscriptLine] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)


def write_scenario(entry: str, calls: Path) -> str:
    """A scenario in TOML, for a file beside the agent. What the agent answered stands in comments.

    Args:
        entry: id of the call, or a folder with its files.
        calls: folder of recorded calls.

    Raises:
        CallNotFoundError: there is no such call.
        ScenarioError: the caller said nothing, or the files cannot be read.
    """
    own = Path(entry)
    try:
        given = nullcontext((None, own)) if own.is_dir() else open_calls(calls).open(entry, name=EVENTS)
        with given as (listed, folder):
            info = listed or msgspec.json.decode((folder / "call.json").read_bytes(), type=CallInfo)
            lines = read_transcript(folder).lines
    except (OSError, msgspec.MsgspecError) as error:
        raise ScenarioError(f"{entry}: the call cannot be read: {error}") from error
    turns = _turns(lines)
    if not turns:
        raise ScenarioError(f"{entry}: the caller said nothing")
    head: dict[str, Any] = {"title": f"Call of {info.started[:16].replace('T', ' ')}", "tags": ["recorded"]}
    if info.reason in _BY_AGENT:
        head["expect"] = {"ended_by": "agent"}
    text = f"\n[[scenario]]\n{to_toml(head)}"
    for name, output in _outputs(lines).items():
        text += f"\n[[scenario.tool]]\n{to_toml({'name': name, 'output': output})}"
    for turn in turns:
        exchange = {turn.kind: " ".join(turn.words), "expect": {"tools": _expected(turn.tools)}}
        text += f"\n[[scenario.exchange]]\n{to_toml(exchange)}"
        text += "".join(f"# answered: {printable(answer)}\n" for answer in turn.answers)
    return text


def _turns(lines: Iterable[TranscriptLine]) -> list[_Turn]:
    """The caller's turns, each with what the agent did before the next one."""
    turns: list[_Turn] = []
    for line in lines:
        match line.kind:
            case "user" | "keys" if line.words.strip():
                kind = {"user": "text" if line.is_typed else "say", "keys": "dtmf"}[line.kind]
                words = line.words.translate(_BRACKETS) if kind == "say" else line.words
                last = turns[-1] if turns else None
                if last and kind == last.kind == "say" and not last.answers and not last.tools:
                    last.words.append(words)
                else:
                    turns.append(_Turn(kind, [words]))
            case "tool" if turns:
                turns[-1].tools.append(line)
            case "agent" if turns:
                turns[-1].answers.append(line.words)
            case _:
                pass
    return turns


def _expected(tools: list[TranscriptLine]) -> list[str] | str:
    calls = []
    for one in tools:
        if not _is_written(one.tool):
            return "any"
        arguments = one.arguments
        if arguments is None or not all(map(_is_written, arguments)):
            calls.append(f"{one.tool}(...)")
        else:
            calls.append(f"{one.tool}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})")
    return calls


def _is_written(name: str) -> bool:
    """Whether a call in Python can have the name."""
    return name.isidentifier() and not iskeyword(name)


def _outputs(lines: Iterable[TranscriptLine]) -> dict[str, Any]:
    """By tool what its first call has returned."""
    found: dict[str, Any] = {}
    for line in lines:
        if line.kind == "tool" and line.output is not None and line.tool not in _ENDING | found.keys():
            try:
                to_toml({"output": line.output})
                found[line.tool] = line.output
            except (
                ClientError
            ):  # it has a null, which TOML lacks; the agent reads JSON in a text as its value
                found[line.tool] = msgspec.json.encode(line.output).decode()
    return found
