"""Logs of calls, made by hand."""

from __future__ import annotations

from typing import Any

from parley import protocol
from parley_testing.devices import Account, AudioEntry
from parley_testing.log import Act, CallLog, Halt, Sound
from parley_testing.scenario import (
    Alternatives,
    Caller,
    Exchange,
    ExpectedCall,
    Scenario,
    parse_cue,
    parse_sentence,
)
from parley_testing.sounds import SOUNDS

PIECE_MS = 100.0


def said(
    written: str,
    at: str = "idle+600",
    *,
    tools: tuple[ExpectedCall, ...] = (),
    answer: tuple[str | Alternatives, ...] = (),
    heard: tuple[str | Alternatives, ...] = (),
    answered: Any = True,
    kind: Any = "say",
) -> Exchange:
    """Something that is said; ``backchannel`` and ``sound`` are no turns."""
    sentence = parse_sentence(written, SOUNDS) if kind in ("say", "backchannel") else None
    cue, is_turn = parse_cue(at), kind not in ("backchannel", "sound")
    return Exchange(
        index=0,
        kind=kind,
        cue=cue,
        sentence=sentence,
        content=written,
        words=sentence.text if sentence else written,
        tools=tools,
        answer=tuple((one,) if isinstance(one, str) else one for one in answer),
        heard=tuple((one,) if isinstance(one, str) else one for one in heard),
        answered=answered if is_turn else False,
        interrupts=is_turn and cue.after == "agent",
    )


class Tape:
    """A call, written down event by event. Times are seconds of the call."""

    def __init__(self, caller: Caller | None = None, tools: tuple[Any, ...] = ()) -> None:
        scenario = Scenario("call", "A call", protocol.Start(), caller or Caller(), tools, ())
        self.log = CallLog(scenario)

    def add(self, at: float, event: Any) -> None:
        self.log.events.append((at, event))
        self.log.events.sort(key=lambda one: one[0])

    def act(
        self, exchange: Exchange, began: float, ended: float, *, over: str = "", over_ms: float = 0
    ) -> Act:
        act = Act(exchange, began, ended, over=over, over_ms=over_ms)
        self.log.acts.append(act)
        return act

    def heard(self, text: str, ended: float, detected: float, final: float) -> None:
        """The server's ears: speech that ended, its silence, its final text."""
        self.add(
            detected,
            protocol.SpeechStopped(at_ms=round(1000 * ended), detected_at_ms=round(1000 * detected)),
        )
        self.add(final, protocol.Transcript(utterance=1, text=text, is_final=True, confidence=0.9))

    def decided(self, at: float, text: str, decision: Any = "commit") -> None:
        self.add(
            at,
            protocol.TurnDecision(utterance=1, decision=decision, reason="text_finished", text=text),
        )

    def speaks(
        self, turn: int, at: float, text: str, *, done: bool = True, heard_ms: float | None = None
    ) -> str:
        """The agent speaks: a word in each piece of 100 ms, all sent at once."""
        response = f"r{turn}"
        self.add(at, protocol.ResponseText(turn=turn, response_id=response, text=text))
        account = Account()
        for number, word in enumerate(text.split()):
            self.add(at + 0.001 * number, Sound(turn, response, number * PIECE_MS, PIECE_MS, word))
            account.entries.append(AudioEntry(number * PIECE_MS, PIECE_MS, word))
        length = PIECE_MS * len(text.split())
        account.heard_ms = length if heard_ms is None else heard_ms
        self.log.ledger[response] = account
        if done:
            self.add(at + 0.1, protocol.ResponseDone(turn=turn, response_id=response, audio_ms=round(length)))
            self.add(at + length / 1000, protocol.TurnMetrics(turn=turn))
        return response

    def interrupted(self, turn: int, at: float, spoken: str, queued_ms: float = 300.0) -> None:
        response = f"r{turn}"
        self.add(at, protocol.Interrupted(turn=turn, response_id=response, played_ms=0, spoken_text=spoken))
        self.add(at, protocol.TurnMetrics(turn=turn, interrupted=True))
        self.log.halts.append(Halt(at, response, queued_ms, was_playing=True))

    def paused(self, turn: int, begin: float, end: float | None) -> None:
        response = f"r{turn}"
        self.add(begin, protocol.Paused(turn=turn, response_id=response, at_ms=round(1000 * begin)))
        self.log.halts.append(Halt(begin, response, 300.0, was_playing=True))
        if end is not None:
            self.add(end, protocol.Resumed(turn=turn, response_id=response, reason="backchannel"))
