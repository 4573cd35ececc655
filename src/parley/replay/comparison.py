"""What differs between a recorded call and a replayed one."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import msgspec

from parley.agent.config import AgentConfig
from parley.protocol import Start
from parley.replay.call_log import AnyEntry, Ask, CallLogDamagedError, End, Iteration, event_of, read_log
from parley.replay.changes import change
from parley.replay.playing import Player

_SHOWN = {
    "transcript": ("words", ("text",)),
    "turn_decision": ("end of turn", ("reason", "text")),
    "interrupted": ("cut-off", ("spoken_text",)),
    "metrics": ("wait", ("turn", "e2e_ms")),
    "tool_request": ("tool", ("name", "arguments")),
    "tool_run": ("tool", ("name", "arguments")),
    "step": ("step", ("step",)),
    "collected": ("data", ("field", "value")),
    "decision": ("decision", ("name", "value")),
    "error": ("error", ("code",)),
    "closed": ("end", ("reason",)),
}
"""Events that are compared by their contents: how that is called, and its fields."""
_MOST_COMPARED = 500
"""Happenings of each call that are compared from the first difference on; more may take minutes."""


class Happening(NamedTuple):
    """Something that a call has, by which calls are compared."""

    at_s: float
    """Since the call began."""
    what: str
    text: str


@dataclass(frozen=True)
class Replay:
    """A call that was played again."""

    session: str
    gone: list[Happening]
    """What only the recorded call has."""
    new: list[Happening]
    """What only the replayed call has."""
    length_s: float
    """As recorded."""
    steps: int
    compared_s: float | None
    """Until when the calls are compared, where too much differs; None: to their ends."""
    unanswered: tuple[float, str] | None
    """When the agent has asked what the file has no answer to, and whom: what follows is not compared."""
    ended_early: str
    """Why the file ends before the call does; empty: it does not."""

    @property
    def differs(self) -> bool:
        """Whether the agent did anything else than it had done."""
        return bool(self.gone or self.new or self.unanswered)


def replay(path: Path, changes: Sequence[str] = ()) -> Replay:
    """Play a recorded call, with ``SETTING=VALUE`` changed.

    Raises:
        CallLogError: the file cannot be used.
        InvalidInputError: a change is impossible.
        OSError: the file cannot be read.
    """
    header, entries = read_log(path)
    try:
        start = msgspec.json.decode(header.start, type=Start)
        config = msgspec.json.decode(header.config, type=AgentConfig)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise CallLogDamagedError(f"{path}: its settings are not those of this version: {error}") from error
    for text in changes:
        start, config = change(start, config, text)
    try:
        logging.disable()  # the server has written all that when the call was recorded
        player = Player(header, entries, start, config)
        player.run()
        asked = list(_with_times(entries))
        began, ended = (asked[0][0], asked[-1][0]) if asked else (0.0, 0.0)
        before, after = _happenings(asked, began), _happenings(player.asked_at, began)
    except Exception as error:
        # What the agent's own code raises ends in its tasks; entries that fit nothing it did end here.
        raise CallLogDamagedError(f"{path}: its entries do not fit together: {error!r}") from error
    finally:
        logging.disable(logging.NOTSET)
    unanswered = None
    if player.unanswered:
        unanswered = player.loop.now - began, player.unanswered
        before = [one for one in before if one.at_s <= unanswered[0]]
    gone, new, compared_s = compare(before, after)
    if player.missed is not None and not (gone or new or changes):
        gone = [Happening(player.missed[0] - began, "step", str(player.missed[1]))]
    why = entries[-1].why if entries and isinstance(entries[-1], End) else "the file is cut"
    return Replay(header.session, gone, new, ended - began, player.steps, compared_s, unanswered, why)


def _with_times(entries: Iterable[AnyEntry]) -> Iterable[tuple[float, Ask]]:
    now = 0.0
    for entry in entries:
        if isinstance(entry, Iteration):
            now = entry.now
        elif isinstance(entry, Ask):
            yield now, entry


def _happenings(asked: Iterable[tuple[float, Ask]], began: float) -> list[Happening]:
    found: list[Happening] = []
    answers: dict[str, str] = defaultdict(str)
    for now, ask in asked:
        event = event_of(ask)
        kind, at_s = event.get("type"), now - began
        if kind == "response":
            answers[event["response_id"]] += event["text"]
        elif kind == "response_done":
            found.append(Happening(at_s, "answer", answers.pop(event["response_id"], "")))
        elif kind in _SHOWN and event.get("is_final", True) and event.get("decision", "commit") == "commit":
            what, names = _SHOWN[kind]
            found.append(Happening(at_s, what, " ".join(str(event.get(name)) for name in names)))
    return found


def compare(
    before: list[Happening], after: list[Happening]
) -> tuple[list[Happening], list[Happening], float | None]:
    """What only the first call has, and what only the second has; when does not count.

    The third value is the time until which they are compared; None: to their ends.
    """
    pairs = zip(before, after, strict=False)
    begin = sum(1 for _ in takewhile(lambda pair: pair[0][1:] == pair[1][1:], pairs))
    end = begin + _MOST_COMPARED
    rest = [one.at_s for one in (*before[end : end + 1], *after[end : end + 1])]
    before, after = before[begin:end], after[begin:end]
    old, now = [one[1:] for one in before], [one[1:] for one in after]
    changes = SequenceMatcher(None, old, now, autojunk=False).get_opcodes()
    if rest and len(changes) > 1 and changes[-1][0] != "equal":
        changes.pop()  # it may be the same as what is not compared
    gone, new = list[Happening](), list[Happening]()
    for kind, i, j, k, m in changes:
        if kind != "equal":
            gone += before[i:j]
            new += after[k:m]
    return gone, new, min(rest, default=None)
