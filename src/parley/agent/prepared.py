"""Answers that are begun before it is certain that they are needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from parley.agent.prompt import Prompt
from parley.agent.speculation import SpeculationBudget
from parley.agent.turn import Turn


@dataclass
class Prepared:
    """An answer to what may be the user's turn."""

    text: str
    turn: Turn
    prompt: Prompt
    task: asyncio.Task[None]


class Preparation:
    """Keeps at most one such answer, and count of those that were in vain.

    Args:
        budget: bounds them.
        counted: takes what became of each: ``used`` or ``discarded``.
    """

    def __init__(self, budget: SpeculationBudget, counted: Callable[[str], None]) -> None:
        self._budget = budget
        self._counted = counted
        self._prepared: Prepared | None = None

    def allowed(self) -> bool:
        """Whether one more may be begun; if so, it is counted."""
        return self._budget.take(_now())

    def keep(self, prepared: Prepared) -> None:
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

    def take(self, text: str) -> Prepared | None:
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
