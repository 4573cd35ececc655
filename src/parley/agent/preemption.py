"""Answers that are begun before it is certain that they are needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from parley.agent.response import SystemPrompt
from parley.agent.turn import AgentTurn


@dataclass
class PreparedResponse:
    """An answer to what may be the user's turn."""

    text: str
    turn: AgentTurn
    prompt: SystemPrompt
    task: asyncio.Task[None]


class PreemptiveGeneration:
    """Keeps at most one such answer, and count of those that were in vain.

    Args:
        budget: bounds them.
        counted: takes what became of each: ``used`` or ``discarded``.
    """

    def __init__(self, budget: PreemptionBudget, counted: Callable[[str], None]) -> None:
        self._budget = budget
        self._counted = counted
        self._prepared: PreparedResponse | None = None

    def allowed(self) -> bool:
        """Whether one more may be begun; if so, it is counted."""
        return self._budget.take(_now())

    def keep(self, prepared: PreparedResponse) -> None:
        """One has been begun."""
        self._prepared = prepared

    def discard(self) -> None:
        """The user had more to say: throw away what was begun."""
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            prepared.turn.stop()
            prepared.task.cancel()
            self._budget.wasted(_now())
            self._counted("discarded")

    def take(self, text: str) -> PreparedResponse | None:
        """What was begun, if it answers this and nothing has gone wrong with it."""
        prepared = self._prepared
        if prepared is None or prepared.text != text or prepared.turn.failed or prepared.task.done():
            self.discard()
            return None
        self._prepared = None
        self._counted("used")
        return prepared

    def turn_over(self) -> int:
        """The user's turn is over; returns how many were begun for it."""
        return self._budget.turn_over()


def _now() -> float:
    return asyncio.get_running_loop().time()


class PreemptionBudget:
    """Bounds the answers that are prepared in vain.

    Each one that is thrown away costs a token; tokens come back at a steady rate. Without any, answers begin
    when the user's turn is over, which is later and never in vain. The time is always given by the caller,
    in seconds of one monotonic clock.

    Args:
        per_turn: answers that may be begun for one turn of the user; 0: none.
        wasted_per_minute: answers that may be thrown away in a minute, and at once after a quiet one.
    """

    def __init__(self, per_turn: int, wasted_per_minute: int) -> None:
        self._per_turn = per_turn
        self._most = float(wasted_per_minute)
        self._tokens = self._most
        self._at: float | None = None
        self._begun = 0

    @property
    def begun(self) -> int:
        """Answers begun for the turn that is under way."""
        return self._begun

    def take(self, now: float) -> bool:
        """Whether one more may be begun; if so, it is counted."""
        self._refill(now)
        if self._begun >= self._per_turn or self._tokens < 1.0:
            return False
        self._begun += 1
        return True

    def wasted(self, now: float) -> None:
        """One that was begun was thrown away."""
        self._refill(now)
        self._tokens -= 1.0

    def turn_over(self) -> int:
        """The user's turn is over; returns how many were begun for it."""
        begun, self._begun = self._begun, 0
        return begun

    def _refill(self, now: float) -> None:
        if self._at is not None:
            self._tokens = min(self._most, self._tokens + (now - self._at) * self._most / 60.0)
        self._at = now
