"""Function calls that wait for the client, and those for which it is too late."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import msgspec

from parley import protocol
from parley_gateway.doors.realtime.nesting import is_too_deep

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
