"""The answers of a recorded call, for an agent that does otherwise than it did then."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from parley.asr.messages import AsrReply
from parley.errors import ParleyError
from parley.protocol import Playback, ToolResponse, decode_message, encode
from parley.replay.call_log import (
    CANCELLED,
    Answer,
    AnyEntry,
    Ask,
    Iteration,
    Outcome,
    Sent,
    Stimulus,
    pack,
    unpack,
)

STREAMS = frozenset({"generate", "speak"})
"""Requests with several outcomes; when one is left, its last is ``NOTHING``."""
NOTHING = Outcome(pack(None))
_AS_THEN = frozenset({"check", "start"})
"""Recognisers are played as they were also where their options are others."""


@dataclass
class _Request:
    kind: str
    digest: bytes
    content: bytes
    outcomes: list[tuple[float, Outcome]] = field(default_factory=list)


class _Event(msgspec.Struct):
    type: str
    response_id: str = ""
    call_id: str = ""
    name: str = ""
    arguments: Any = None


class Answers:
    """Finds them by what is asked; the recogniser's by how much audio it has.

    Args:
        entries: of the file.
        followed: how many of them the agent has done likewise.
        sent: the events until then.
    """

    def __init__(self, entries: Sequence[AnyEntry], followed: int, sent: Iterable[bytes]) -> None:
        self._requests: list[_Request] = []
        self._responses: dict[str, list[tuple[float, ToolResponse]]] = {}
        self._tools: deque[tuple[str, Any, str]] = deque()
        self._spoken: set[str] = set()
        self._taken: Counter[int] = Counter()
        now, asked_at, contents = 0.0, dict[str, float](), dict[bytes, bytes]()
        known = 0
        for index, entry in enumerate(entries):
            match entry:
                case Iteration():
                    now = entry.now
                case Ask():
                    content = contents.setdefault(entry.digest, entry.content)
                    self._requests.append(_Request(entry.kind, entry.digest, content))
                    known += index < followed
                case Answer():
                    self._requests[entry.number].outcomes.append((entry.waited_s, entry.outcome))
                    self._taken[entry.number] += index < followed
                case Sent() if (
                    event := msgspec.json.decode(entry.event, type=_Event)
                ).type == "tool_request":
                    asked_at[event.call_id] = now
                    self._responses[event.call_id] = []
                    self._tools.append((event.name, event.arguments, event.call_id))
                case Stimulus(kind="message") if (response := _response(entry.data)) is not None:
                    if response.call_id in asked_at:
                        self._responses[response.call_id].append((now - asked_at[response.call_id], response))
                case _:
                    pass
        self._source = {number: number for number in range(known)}
        self._heard: Counter[int] = Counter()  # samples by stream
        self._replies: dict[int, deque[tuple[int, float, Outcome]]] = defaultdict(deque)
        self._read_pushes()
        waiting = {one[2] for one in self._tools}
        for raw in sent:
            self.on_event(raw)
        self._own = waiting - {one[2] for one in self._tools}

    def _read_pushes(self) -> None:
        """Where in the audio of each stream its replies have come."""
        ends: Counter[int] = Counter()
        for number, request in enumerate(self._requests):
            if request.kind != "push":
                continue
            stream, samples = unpack(request.content, tuple[int, int])
            ends[stream] += samples
            if self._taken[number]:
                self._heard[stream] = ends[stream]
            elif request.outcomes:
                self._replies[stream].append((ends[stream], *request.outcomes[0]))

    def next_outcome(
        self, number: int, kind: str, digest: bytes, content: bytes
    ) -> tuple[float, Outcome] | None:
        """After how many seconds which outcome comes; None: the file has none."""
        if kind == "push":
            return self._hear(*unpack(content, tuple[int, int]))
        if number not in self._source and (found := self._find(kind, digest)) is not None:
            self._source[number] = found
        source, taken = self._source.get(number), self._taken[number]
        if source is None or taken >= len(self._requests[source].outcomes):
            return None
        self._taken[number] += 1
        waited_s, outcome = self._requests[source].outcomes[taken]
        return (0.0, CANCELLED) if kind in STREAMS and outcome == NOTHING else (waited_s, outcome)

    def _find(self, kind: str, digest: bytes) -> int | None:
        """The first such request that has not been made again, or the last one."""
        used = set(self._source.values())
        found = [
            number
            for number, one in enumerate(self._requests)
            if one.kind == kind and (one.digest == digest or kind in _AS_THEN)
        ]
        return next((one for one in found if one not in used), found[-1] if found else None)

    def _hear(self, stream: int, samples: int) -> tuple[float, Outcome]:
        self._heard[stream] += samples
        reply, events, waited_s = AsrReply(stream_ms=self._heard[stream] // 16), [], 0.0
        replies = self._replies[stream]
        while replies and replies[0][0] <= self._heard[stream]:
            _, waited_s, outcome = replies.popleft()
            if outcome.value is None:
                return waited_s, outcome
            reply = unpack(outcome.value, AsrReply)
            events += reply.events
        return waited_s, Outcome(pack(msgspec.structs.replace(reply, events=events)))

    # --- the client ---------------------------------------------------------------------------

    def is_timely(self, message: bytes) -> bool:
        """Whether a message of the client suits what it was sent."""
        try:
            decoded = decode_message(message)
        except ParleyError:
            return True
        if isinstance(decoded, ToolResponse):
            return decoded.call_id in self._own
        return not isinstance(decoded, Playback) or decoded.response_id in self._spoken

    def on_event(self, raw: bytes) -> list[tuple[float, bytes]] | None:
        """What the client answers to an event, and after how many seconds; None: the file does not say."""
        event = msgspec.json.decode(raw, type=_Event)
        if event.type == "audio":
            self._spoken.add(event.response_id)
        if event.type != "tool_request":
            return []
        for one in self._tools:
            if one[:2] == (event.name, event.arguments):
                self._tools.remove(one)
                responses = self._responses[one[2]]
                replace = msgspec.structs.replace
                return [
                    (after_s, encode(replace(what, call_id=event.call_id))) for after_s, what in responses
                ]
        return None


def _response(message: bytes) -> ToolResponse | None:
    try:
        decoded = decode_message(message)
    except ParleyError:
        return None
    return decoded if isinstance(decoded, ToolResponse) else None
