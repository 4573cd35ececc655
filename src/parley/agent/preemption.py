"""Preemptive generation: answers that are begun before the end of the user's turn is certain."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from parley.agent.prompt import SystemPrompt
from parley.agent.turn import AgentTurn
from parley.timeouts import loop_time
from parley.token_bucket import TokenBucket


@dataclass
class PreparedResponse:
    """An answer to what may be the user's turn."""

    text: str
    turn: AgentTurn
    prompt: SystemPrompt
    task: asyncio.Task[None]


class PreemptionBudget:
    """Bounds the preemptive generations that are discarded (a token bucket).

    A discarded one costs a token; tokens are refilled at a steady rate. Without tokens, answers begin at the
    end of the user's turn. The caller passes the time, in seconds of one monotonic clock.

    Args:
        per_turn: answers that may be begun for one turn of the user; 0: none.
        wasted_per_minute: answers that may be discarded per minute; also the size of the bucket.
    """

    def __init__(self, per_turn: int, wasted_per_minute: int) -> None:
        self._per_turn = per_turn
        self._tokens = TokenBucket(wasted_per_minute, wasted_per_minute / 60)
        self._begun = 0

    def take(self, now: float) -> bool:
        """Count one more answer if it is allowed; returns whether it is."""
        if self._begun >= self._per_turn or self._tokens.left(now) < 1.0:
            return False
        self._begun += 1
        return True

    def record_discarded(self, now: float) -> None:
        """A begun answer was discarded."""
        self._tokens.spend(1.0, now)

    def end_turn(self) -> int:
        """The user's turn is over; returns how many answers were begun for it."""
        begun, self._begun = self._begun, 0
        return begun


class PreemptiveGeneration:
    """Owns at most one prepared answer, and passes its outcome to ``count``: ``used`` or ``discarded``."""

    def __init__(self, budget: PreemptionBudget, count: Callable[[str], None]) -> None:
        self.budget = budget
        self._count = count
        self._prepared: PreparedResponse | None = None

    def set(self, prepared: PreparedResponse) -> None:
        """Own an answer that was begun."""
        self._prepared = prepared

    def discard(self) -> None:
        """Stop the prepared answer: the user's turn goes on."""
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            prepared.turn.stop()
            prepared.task.cancel()
            prepared.turn.record("discarded")
            self.budget.record_discarded(loop_time())
            self._count("discarded")

    async def read(self, text: str) -> float | None:
        """What the prepared answer to ``text`` says of its end (0-1); None: nothing, or there is none."""
        prepared = self._prepared
        if prepared is None or prepared.text != text:
            return None
        return await asyncio.shield(prepared.turn.read)

    def take(self, text: str) -> PreparedResponse | None:
        """The prepared answer to ``text``; None if there is none, or it has failed."""
        prepared = self._prepared
        if prepared is None or prepared.text != text or prepared.turn.failed or prepared.task.done():
            self.discard()
            return None
        self._prepared = None
        self._count("used")
        return prepared
