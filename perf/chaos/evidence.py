"""What the callers of a fault have got: who was touched, what was mixed up, and what never ended."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeAlias

import numpy as np

from chaos.callers import Caller, Open, Turn
from chaos.words import Part
from parley import protocol
from parley_client.audio.files import Pcm, resample
from parley_client.events import AgentAudio, CallEvent, Reconnecting

_RATE = 16_000
_FAILED = ("apology", "error", "nothing")


class Effect(IntEnum):
    """How much a fault may do to a call, or has done; each contains those before it."""

    NOTHING = 0
    TURN = 1
    """A turn fails; its caller gets an apology, or an error."""
    MOVE = 2
    """It goes on at another server, or in another session of the same."""
    LOSS = 3
    """It ends."""


class ChaosCaller(Caller):
    """A caller with a part of its own."""

    def __init__(self, number: int, where: str, part: Part, connect: Open) -> None:
        super().__init__(number, connect, part.question)
        self.where = where
        self.part = part
        self.moves: list[float] = []
        """When it had to go on elsewhere (seconds of :func:`time.time`)."""
        self.got: list[CallEvent] = []
        """In all calls."""

    def on_event(self, event: CallEvent, now: float) -> None:
        """Keep it."""
        self.got.append(event)
        if isinstance(event, Reconnecting):
            self.moves.append(now)

    def effect(self, since: float) -> Effect:
        """What has become of its calls since then."""
        if any(loss.at >= since for loss in self.losses):
            return Effect.LOSS
        if any(at >= since for at in self.moves):
            return Effect.MOVE
        failed = any(turn.ended >= since and (turn.end in _FAILED or turn.codes) for turn in self.turns)
        return Effect.TURN if failed else Effect.NOTHING


Speech: TypeAlias = tuple[Part, Pcm]
"""An answer as it was heard, 16 kHz, and whose it should be."""


@dataclass
class Comparison:
    """Texts and speech that were compared with the parts."""

    own: int = 0
    """That are about the caller's own city: only these show that the comparison works."""
    foreign: list[str] = field(default_factory=list)
    """What belongs to another caller."""

    def add(self, part: Part, text: str, what: str) -> None:
        """Compare a text."""
        self._add(part, text, what, part.find_foreign(text))

    def add_heard(self, part: Part, text: str) -> None:
        """Compare what an answer sounds like, by its city: numbers are mistaken for others."""
        self._add(part, text, "speech", part.find_foreign_cities(text))

    def _add(self, part: Part, text: str, what: str, foreign: Sequence[str]) -> None:
        self.own += part.names(text)
        self.foreign += [f"{what} of {part.city}: {found} in {text!r}" for found in foreign]


def compare_texts(caller: ChaosCaller, comparison: Comparison) -> None:
    """Compare all that a caller has got in writing."""
    answers: dict[str, str] = {}
    for event in caller.got:
        match event:
            case protocol.Transcript(is_final=True):
                comparison.add(caller.part, event.text, "transcript")
            case protocol.ToolRequest():
                comparison.add(caller.part, json.dumps(event.arguments), "tool call")
            case protocol.Interrupted():
                comparison.add(caller.part, event.spoken_text, "interrupted answer")
            case protocol.ResponseText():
                answers[event.response_id] = answers.get(event.response_id, "") + event.text
            case _:
                pass
    for text in answers.values():
        comparison.add(caller.part, text, "answer")


def find_speech(caller: ChaosCaller) -> Iterator[Speech]:
    """The answers to a caller that were spoken to their end."""
    for turn in caller.turns:
        if turn.answered and (samples := _join(turn)) is not None:
            yield caller.part, samples


def _join(turn: Turn) -> Pcm | None:
    pieces = [event for event in turn.events if isinstance(event, AgentAudio)]
    if not pieces:
        return None
    joined: Pcm = np.concatenate([piece.samples for piece in pieces])
    return resample(joined, pieces[0].sample_rate, _RATE)


def count_turns(callers: Sequence[ChaosCaller], since: float) -> tuple[int, int, list[str]]:
    """Turns that have ended since then; those of them without an answer; those that got nothing at all."""
    ended = [(caller, turn) for caller in callers for turn in caller.turns if turn.ended >= since]
    silent = [
        f"caller {caller.number} at {caller.where} got neither an answer nor an error"
        for caller, turn in ended
        if turn.end == "nothing"
    ]
    return len(ended), sum(not turn.answered for _, turn in ended), silent
