"""The answers of a recorded call, for an agent that does something else than in the recording."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

from parley.asr.messages import AsrReply
from parley.errors import ParleyError
from parley.protocol import ToolResponse, decode_message, encode
from parley.replay.call_log import (
    CANCELLED,
    AnyEntry,
    Ask,
    AskAnswer,
    AskOutcome,
    Iteration,
    Stimulus,
    digest_of,
    event_of,
    pack,
    unpack,
)

STREAMS = frozenset({"chat.generate", "synthesizer.speak"})
"""Requests with several outcomes; when one is left, its last is ``NOTHING``."""
NOTHING = AskOutcome(pack(None))
_WHATEVER_OPTIONS = frozenset({"recognizer.check", "recognizer.start"})
"""Requests that are answered as recorded even if their arguments have changed."""
_Key: TypeAlias = int | str
"""The number of a request; for a tool of the client, the id of the call."""
_Question: TypeAlias = tuple[str, bytes]


@dataclass
class _Request:
    content: bytes
    asked_at: float
    outcomes: list[tuple[float, Any]] = field(default_factory=list)
    """After how many seconds which :class:`AskOutcome` has come, or which :class:`ToolResponse`."""


class Answers:
    """Finds them by what is asked; the recogniser's by how much audio it has.

    Args:
        entries: of the file.
        followed: how many of them the agent has done likewise.
    """

    def __init__(self, entries: Sequence[AnyEntry], followed: int) -> None:
        self._requests: dict[_Key, _Request] = {}
        self._alike: dict[_Question, deque[_Key]] = defaultdict(deque)
        self._source: dict[_Key, _Key] = {}
        """For each request of the replay, the one of the file whose answers it gets."""
        self._taken: Counter[_Key] = Counter()
        self._heard: Counter[int] = Counter()  # samples by stream
        self._replies: dict[int, deque[tuple[int, float, AskOutcome]]] = defaultdict(deque)
        now = 0.0
        for index, entry in enumerate(entries):
            match entry:
                case Iteration():
                    now = entry.now
                case Ask():
                    self._add(entry.number, _question(entry), entry.content, now, index < followed)
                    if (event := event_of(entry)).get("type") == "tool_request":
                        self._add(event["call_id"], _request(event), b"", now, index < followed)
                case AskAnswer():
                    self._requests[entry.number].outcomes.append((entry.waited_s, entry.outcome))
                    self._taken[entry.number] += index < followed
                case Stimulus() if (response := _response(entry)) is not None:
                    if (request := self._requests.get(response.call_id)) is not None:
                        request.outcomes.append((now - request.asked_at, response))
                case _:
                    pass
        self._own = frozenset(self._source)
        self._used = set(self._source)
        self._read_pushes(entry.number for entry in entries if isinstance(entry, Ask) and _is_push(entry))

    def _add(self, key: _Key, question: _Question, content: bytes, now: float, is_followed: bool) -> None:
        self._requests[key] = _Request(content, now)
        self._alike[question].append(key)
        if is_followed:
            self._source[key] = key

    def _read_pushes(self, numbers: Iterable[int]) -> None:
        """For each stream, the positions in its audio at which replies came."""
        ends: Counter[int] = Counter()
        for number in numbers:
            request = self._requests[number]
            stream, samples = unpack(request.content, tuple[int, int])
            ends[stream] += samples
            if self._taken[number]:
                self._heard[stream] = ends[stream]
            elif request.outcomes:
                self._replies[stream].append((ends[stream], *request.outcomes[0]))

    def answer(self, ask: Ask) -> tuple[float, AskOutcome] | None:
        """The delay in seconds and the outcome; None: the file has none."""
        if _is_push(ask):
            return self._hear(*unpack(ask.content, tuple[int, int]))
        request, taken = self._find(ask.number, _question(ask)), self._taken[ask.number]
        if request is None or taken >= len(request.outcomes):
            return None
        self._taken[ask.number] += 1
        waited_s, outcome = request.outcomes[taken]
        return (0.0, CANCELLED) if ask.kind in STREAMS and outcome == NOTHING else (waited_s, outcome)

    def _find(self, key: _Key, question: _Question) -> _Request | None:
        """The first such request that has not been made again, or the last one."""
        if key not in self._source:
            alike = self._alike[question]
            while len(alike) > 1 and alike[0] in self._used:
                alike.popleft()
            if not alike:
                return None
            self._source[key] = alike[0]
            self._used.add(alike[0])
        return self._requests[self._source[key]]

    def _hear(self, stream: int, samples: int) -> tuple[float, AskOutcome]:
        self._heard[stream] += samples
        reply, events, waited_s = AsrReply(stream_ms=self._heard[stream] // 16), [], 0.0
        replies = self._replies[stream]
        while replies and replies[0][0] <= self._heard[stream]:
            _, waited_s, outcome = replies.popleft()
            if outcome.value is None:
                return waited_s, outcome
            reply = unpack(outcome.value, AsrReply)
            events += reply.events
        return waited_s, AskOutcome(pack(msgspec.structs.replace(reply, events=events)))

    # --- the client ---------------------------------------------------------------------------

    def is_timely(self, stimulus: Stimulus) -> bool:
        """Whether the client would have sent this now, too: not the answer to a later request."""
        response = _response(stimulus)
        return response is None or response.call_id in self._own

    def respond(self, event: dict[str, Any]) -> list[tuple[float, bytes]] | None:
        """The client's messages to a tool request, and after how many seconds; None: the file has none."""
        call_id = event["call_id"]
        if (request := self._find(call_id, _request(event))) is None:
            return None
        answers = [
            (after_s, msgspec.structs.replace(one, call_id=call_id)) for after_s, one in request.outcomes
        ]
        return [(after_s, pack(encode(answer))) for after_s, answer in answers]


def _is_push(ask: Ask) -> bool:
    return ask.kind == "recognizer.push"


def _question(ask: Ask) -> _Question:
    return ask.kind, b"" if ask.kind in _WHATEVER_OPTIONS else ask.digest


def _request(event: dict[str, Any]) -> _Question:
    return "tool of the client", digest_of([event["name"], event["arguments"]])


def _response(stimulus: Stimulus) -> ToolResponse | None:
    if stimulus.kind != "on_message":
        return None
    try:
        decoded = decode_message(unpack(stimulus.data, bytes))
    except ParleyError:
        return None
    return decoded if isinstance(decoded, ToolResponse) else None
