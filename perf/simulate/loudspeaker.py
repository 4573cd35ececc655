"""The caller's loudspeaker: the client's own, with a ledger of what came and what of it was heard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from parley_client.audio.playout import Heard, PlayoutClock
from parley_client.events import AgentAudio


@dataclass(frozen=True)
class Entry:
    """A piece of the agent's speech."""

    offset_ms: float
    """Where it begins in its response, as the server says."""
    length_ms: float
    text: str
    """The words that begin in it."""


@dataclass
class Account:
    """What came of a response, and how much of it was heard."""

    entries: list[Entry] = field(default_factory=list)
    heard_ms: float = 0.0


class Loudspeaker:
    """Plays pieces one after the other, halts and drops as the server says.

    Args:
        on_heard: is told about every stretch that was heard.
    """

    def __init__(self, on_heard: Callable[[Heard], None] | None = None) -> None:
        self._on_heard = on_heard
        self._clock = PlayoutClock(self._note)
        self._dropped: set[str] = set()
        self.ledger: dict[str, Account] = {}
        """By response."""
        self.late: list[Entry] = []
        """Pieces that came after their response had been interrupted."""

    def push(self, audio: AgentAudio, now: float) -> None:
        """A piece arrives and is queued behind the others."""
        entry = Entry(audio.offset_ms, audio.duration_ms, audio.text)
        if audio.response_id in self._dropped:
            self.late.append(entry)
        else:
            self.ledger.setdefault(audio.response_id, Account()).entries.append(entry)
            self._clock.push(audio, now)

    def pause(self, response_id: str, now: float) -> None:
        """Halt and keep what is queued."""
        self._clock.pause(response_id, now)

    def resume(self, response_id: str, now: float) -> None:
        """Go on where it halted."""
        self._clock.resume(response_id, now)

    def interrupt(self, response_id: str, now: float) -> None:
        """Drop what is queued of a response, and all of it that is still to come."""
        self._dropped.add(response_id)
        self._clock.interrupt(response_id, now)

    def advance(self, now: float) -> None:
        """Let time pass."""
        self._clock.advance(now)

    def _note(self, heard: Heard) -> None:
        self.ledger[heard.response_id].heard_ms += 1000 * len(heard.samples) / heard.sample_rate
        if self._on_heard is not None:
            self._on_heard(heard)

    @property
    def halted(self) -> bool:
        """Whether it waits for the server to decide."""
        return self._clock.paused

    def playing(self, now: float) -> str | None:
        """The response that is being heard."""
        return self._clock.playing(now)

    def played_ms(self, response_id: str) -> float:
        """How much of a response has been heard, as of the last call with a time."""
        account = self.ledger.get(response_id)
        return account.heard_ms if account else 0.0

    def queued_ms(self, now: float) -> float:
        """How much waits to be heard."""
        self._clock.advance(now)
        return 1000 * self._clock.queued_s(now)
