"""What differs between a recorded call and a replayed one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from parley.agent.config import AgentConfig
from parley.names import suggest_name
from parley.protocol import Start
from parley.replay.call_log import AnyEntry, CallLogError, End, Iteration, Sent, read_log
from parley.replay.playing import Player

StructT = TypeVar("StructT", bound=msgspec.Struct)
_SHOWN = {
    "transcript": ("words", ("text",)),
    "turn_decision": ("end of turn", ("reason", "text")),
    "interrupted": ("cut-off", ("spoken_text",)),
    "metrics": ("wait", ("turn", "e2e_ms")),
    "tool_request": ("tool", ("name", "arguments")),
    "tool_run": ("tool", ("name", "arguments")),
    "error": ("error", ("code",)),
    "closed": ("end", ("reason",)),
}
"""Events that are compared by their contents: how that is called, and its fields."""


class SentEvent(NamedTuple):
    """What the client was sent."""

    at_s: float
    event: bytes
    audio: bytes


class Difference(NamedTuple):
    """Something that one of the calls has, or has otherwise."""

    at_s: float
    """Since the call began."""
    what: str
    before: str
    """Empty: it is new."""
    after: str
    """Empty: it is gone."""


@dataclass(frozen=True)
class Replay:
    """A call that was played again."""

    differences: list[Difference]
    length_s: float
    """As recorded."""
    steps: int
    unanswered: tuple[float, str] | None = None
    """When the agent has asked what the file has no answer to, and whom: what follows is not compared."""
    ended_early: str = ""
    """Why the file ends before the call does; empty: it does not."""


class UnknownSettingError(ValueError):
    """There is no such setting, or it cannot have this value."""


def replay(path: Path, changes: Iterable[str] = ()) -> Replay:
    """Play a recorded call, with ``SETTING=VALUE`` changed.

    Raises:
        CallLogError: the file cannot be used.
        OSError: it cannot be read.
        UnknownSettingError: a change is impossible.
    """
    header, entries = read_log(path)
    try:
        start = msgspec.json.decode(header.start, type=Start)
        config = msgspec.json.decode(header.config, type=AgentConfig)
    except msgspec.MsgspecError as error:
        raise CallLogError(f"another version of Parley has written it: {error}") from error
    for change in changes:
        start, config = _change(start, config, change)
    player = Player(header, entries, start, config)
    player.run()
    times = [entry.now for entry in entries if isinstance(entry, Iteration)]
    began = times[0] if times else 0.0
    before = [SentEvent(at - began, *more) for at, *more in _sent(entries)]
    after = [SentEvent(at - began, event, audio) for at, event, audio in player.sent_events]
    unanswered = None
    if player.unanswered:
        unanswered = player.loop.now - began, player.unanswered
        before = [one for one in before if one.at_s <= unanswered[0]]
    last = entries[-1] if entries else None
    why = last.why if isinstance(last, End) else "killed"
    return Replay(compare(before, after), times[-1] - began if times else 0.0, player.steps, unanswered, why)


def _sent(entries: Iterable[AnyEntry]) -> Iterable[tuple[float, bytes, bytes]]:
    now = 0.0
    for entry in entries:
        if isinstance(entry, Iteration):
            now = entry.now
        elif isinstance(entry, Sent):
            yield now, entry.event, entry.audio


def compare(before: Sequence[SentEvent], after: Sequence[SentEvent]) -> list[Difference]:
    """What differs, in the order of time; where no content does, the first event that does."""
    found: list[Difference] = []
    old, new = _contents(before), _contents(after)
    for what in (*old, *(set(new) - set(old))):
        had, has = old.get(what, []), new.get(what, [])
        matcher = SequenceMatcher(None, [text for _, text in had], [text for _, text in has], autojunk=False)
        for kind, i, j, k, m in matcher.get_opcodes():
            if kind != "equal":
                at_s = had[i][0] if i < j else has[k][0]
                texts = [" | ".join(text for _, text in part) for part in (had[i:j], has[k:m])]
                found.append(Difference(at_s, what, *texts))
    if not found and list(before) != list(after):
        number = next(
            (n for n, (one, other) in enumerate(zip(before, after, strict=False)) if one != other),
            min(len(before), len(after)),
        )
        parts = [events[number] if number < len(events) else None for events in (before, after)]
        shown = ["" if one is None else f"{one.at_s:.6f} s {one.event.decode()}" for one in parts]
        found.append(Difference(max(one.at_s for one in parts if one is not None), "event", *shown))
    return sorted(found)


def _contents(events: Iterable[SentEvent]) -> dict[str, list[tuple[float, str]]]:
    """By what it is, when the call has what."""
    found: dict[str, list[tuple[float, str]]] = defaultdict(list)
    answers: dict[str, str] = {}
    for at_s, raw, _ in events:
        event: dict[str, Any] = msgspec.json.decode(raw)
        kind = event["type"]
        if kind == "response":
            answers[event["response_id"]] = answers.get(event["response_id"], "") + event["text"]
        elif kind == "response_done":
            found["answer"].append((at_s, answers.pop(event["response_id"], "")))
        elif kind in _SHOWN and event.get("is_final", True) and event.get("decision", "commit") == "commit":
            what, names = _SHOWN[kind]
            found[what].append((at_s, " ".join(str(event.get(name)) for name in names)))
    return found


def _change(start: Start, config: AgentConfig, change: str) -> tuple[Start, AgentConfig]:
    name, _, text = change.partition("=")
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        value = text
    path = name.split(".")
    try:
        if path[0] in Start.__struct_fields__:
            return _set(start, path, value), config
        if path[0] in AgentConfig.__struct_fields__:
            return start, _set(config, path, value)
        deadlines = {one.encode_name: one.name for one in msgspec.structs.fields(config.deadlines)}
        if path[0] in deadlines:
            return start, _set(config, ["deadlines", deadlines[path[0]]], value)
    except (msgspec.ValidationError, AttributeError) as error:
        raise UnknownSettingError(f"{change}: {error}") from error
    known = (*Start.__struct_fields__, *AgentConfig.__struct_fields__, *deadlines)
    raise UnknownSettingError(f"there is no setting {name!r}{suggest_name(name, known)}")


def _set(struct: StructT, path: Sequence[str], value: Any) -> StructT:
    """A struct with another value of a field, or of a field of its field.

    Raises:
        AttributeError: it has no such field.
        msgspec.ValidationError: the value is wrong.
    """
    before = getattr(struct, path[0])
    if len(path) > 1:
        if not isinstance(before, msgspec.Struct):
            raise AttributeError(f"{path[0]} has no fields")
        value = _set(before, path[1:], value)
    else:
        kind = next(one.type for one in msgspec.structs.fields(struct) if one.name == path[0])
        value = msgspec.convert(value, kind, strict=False)
    return msgspec.structs.replace(struct, **{path[0]: value})
