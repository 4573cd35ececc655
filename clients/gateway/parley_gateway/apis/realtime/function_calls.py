"""Function calls that wait for the client, and those for which it is too late."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from parley import protocol
from parley_gateway.apis.realtime.agent_commands import AgentCommands
from parley_gateway.apis.realtime.client_events import is_too_deep

_REMEMBERED = 256


@dataclass
class _Call:
    request: protocol.ToolRequest
    output: str | None = None


class FunctionCalls:
    """The calls of the agent's current turn; it waits for all their outputs."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, _Call] = OrderedDict()
        self._over: OrderedDict[str, protocol.ToolRequest] = OrderedDict()

    @property
    def waiting(self) -> bool:
        """Whether the agent waits for outputs."""
        return bool(self._waiting)

    @property
    def complete(self) -> bool:
        """Whether all outputs are there."""
        return all(call.output is not None for call in self._waiting.values())

    def called(self, request: protocol.ToolRequest) -> None:
        """The agent waits for one more."""
        self._waiting[request.call_id] = _Call(request)

    def answered(self, call_id: str, output: str) -> bool:
        """The client has run it; False: nobody waits for it."""
        call = self._waiting.get(call_id)
        if call is None or call.output is not None:
            return False
        call.output = output
        return True

    def dropped(self, call_id: str) -> str | None:
        """The agent does not wait for it any more; returns the output that it has not been told."""
        call = self._waiting.pop(call_id, None)
        if call is None:
            return None
        if call.output is None:
            self._end(call.request)
            return None
        return told(call.request.name, call.output)

    def take(self) -> list[tuple[str, str]]:
        """All calls with their outputs, which are no longer waited for."""
        calls = [(call_id, call.output or "") for call_id, call in self._waiting.items()]
        self._waiting.clear()
        return calls

    def late(self, call_id: str) -> protocol.ToolRequest | None:
        """The call to which an output came too late; None: there was none."""
        return self._over.get(call_id)

    def _end(self, request: protocol.ToolRequest) -> None:
        self._over[request.call_id] = request
        if len(self._over) > _REMEMBERED:
            self._over.popitem(last=False)


def told(name: str, output: str) -> str:
    """What the agent is to know of an output for which it does not wait any more."""
    return f"The function {name} has returned: {output if output.strip() else 'nothing'}"


def value_of(output: str) -> Any:
    """What a function returned: JSON if it is some, else the text itself."""
    try:
        value = msgspec.json.decode(output)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return output
    return output if is_too_deep(value) else value


_UNANSWERED_S = 5.0
"""So long after the last output the client may ask how it goes on; the agent waits longer (seconds)."""
_TAKEN_S = 0.1
"""The agent has taken outputs by then, and not said anything yet (seconds)."""


class DeferredToolOutputs:
    """Hands the agent what its functions returned.

    The agent goes on as soon as it has all outputs. So they are held back until the client asks for that; if
    it does not, the agent gets them, and is made to be silent.

    Args:
        calls: That wait for outputs.
        port: To the agent.
        clock: Seconds, monotonic.
    """

    def __init__(self, calls: FunctionCalls, port: AgentCommands, clock: Callable[[], float]) -> None:
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
