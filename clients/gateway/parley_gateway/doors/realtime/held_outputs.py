"""Outputs of functions, until it is known whether the client wants to hear more."""

from __future__ import annotations

from collections.abc import Callable

from parley_gateway.doors.realtime.function_calls import FunctionCalls, value_of
from parley_gateway.doors.realtime.port import Port

_UNANSWERED_S = 5.0
"""So long after the last output the client may ask how it goes on; the agent waits longer (seconds)."""
_TAKEN_S = 0.1
"""The agent has taken outputs by then, and not said anything yet (seconds)."""


class HeldOutputs:
    """Hands the agent what its functions returned.

    The agent goes on as soon as it has all outputs. So they are held back until the client asks for that; if
    it does not, the agent gets them, and is made to be silent.

    Args:
        calls: That wait for outputs.
        port: To the agent.
        clock: Seconds, monotonic.
    """

    def __init__(self, calls: FunctionCalls, port: Port, clock: Callable[[], float]) -> None:
        self._calls = calls
        self._port = port
        self._clock = clock
        self._wanted_by: float | None = None
        self._silent_from: float | None = None
        self._turn_id = ""

    @property
    def due(self) -> float | None:
        """When :meth:`tick` has something to do."""
        return self._silent_from if self._wanted_by is None else self._wanted_by

    def answer(self) -> None:
        """The agent is to go on."""
        self._wanted_by = None
        for call_id, output in self._calls.take():
            self._port.answer_tool(call_id, value_of(output))

    def expect_answer(self) -> None:
        """All outputs are there: the client should say that it wants to hear more."""
        self._wanted_by = self._clock() + _UNANSWERED_S

    def dropped(self) -> None:
        """The agent does not wait for a call any more."""
        if not self._calls.waiting:
            self._wanted_by = None

    def tick(self, turn_id: str) -> bool:
        """Time has passed.

        Args:
            turn_id: What the agent calls its turn under way; empty: it has not said so.

        Returns:
            Whether the client has not asked in time: it hears nothing more of this turn.
        """
        now = self._clock()
        if self._wanted_by is not None and now >= self._wanted_by:
            self.answer()
            self._turn_id, self._silent_from = turn_id, now + _TAKEN_S
            return True
        if self._silent_from is not None and now >= self._silent_from:
            self.hush()
        return False

    def hush(self) -> None:
        """Make the agent be silent, if it has been given outputs of which nobody wants to hear."""
        if self._silent_from is not None:
            self._silent_from = None
            self._port.interrupt(self._turn_id or None)
