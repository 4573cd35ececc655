"""Function calls of the agent, and their outputs by the client."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from parley import protocol
from parley_gateway.apis.realtime.agent_commands import AgentCommands

_MAX_LATE_CALLS = 256
_REQUEST_S = 5.0
"""Wait for the client's ``response.create`` after the last output; the agent waits longer (seconds)."""
_SILENCE_DELAY_S = 0.1
"""The agent has received outputs by then, and not spoken yet (seconds)."""


@dataclass
class WaitingCall:
    """A call whose output the agent waits for."""

    request: protocol.ToolRequest
    output: str | None = None
    is_sent: bool = False
    """Whether the agent was sent the output."""
    by_server: bool = False
    """Whether an MCP server has the tool, and not the client."""


class FunctionCalls:
    """The calls of the agent's current turn, which waits for all their outputs.

    The agent continues as soon as it has all outputs, which are therefore sent when the client requests the
    response to them. If it requests none in time, the agent gets the outputs and is then interrupted.
    """

    def __init__(self, commands: AgentCommands, clock: Callable[[], float]) -> None:
        self._commands = commands
        self._clock = clock
        self._waiting: OrderedDict[str, WaitingCall] = OrderedDict()
        # Whose outputs were sent last; the agent may have cancelled them before it gets those.
        self._sent: OrderedDict[str, WaitingCall] = OrderedDict()
        self._late: OrderedDict[str, protocol.ToolRequest] = OrderedDict()
        self._request_by_s: float | None = None
        self._silence_at_s: float | None = None
        self._turn_id = ""

    @property
    def waiting(self) -> bool:
        """Whether the agent waits for outputs."""
        return bool(self._waiting)

    @property
    def has_server_call(self) -> bool:
        """Whether one of them is of an MCP server."""
        return any(call.by_server for call in self._waiting.values())

    @property
    def complete(self) -> bool:
        """Whether the client has sent all outputs."""
        return all(call.output is not None for call in self._waiting.values())

    @property
    def due(self) -> float | None:
        """The time of the next :meth:`tick`; None: none is needed."""
        return self._silence_at_s if self._request_by_s is None else self._request_by_s

    def state(self) -> list[WaitingCall]:
        """What outlives the connection."""
        return [*self._sent.values(), *self._waiting.values()]

    def restore(self, calls: list[WaitingCall]) -> None:
        """Begin with the calls of another connection that the agent waits for."""
        self._waiting.update((call.request.call_id, call) for call in calls)
        for call in calls:
            if call.by_server and call.output is None:
                call.output = '{"error": "the connection was lost; the call may have been carried out"}'
        if calls and all(call.is_sent for call in calls):
            self.send_outputs()  # they were lost
        elif calls and self.complete:
            self.defer_outputs()

    def add(self, request: protocol.ToolRequest, *, by_server: bool) -> None:
        """Add a call."""
        self._waiting[request.call_id] = WaitingCall(request, by_server=by_server)

    def set_output(self, call_id: str, output: str) -> bool:
        """Store the output of a call; returns False if no such call waits for one."""
        call = self._waiting.get(call_id)
        if call is None or call.output is not None:
            return False
        call.output = output
        return True

    def find_late(self, call_id: str) -> protocol.ToolRequest | None:
        """A call that was cancelled before its output came; None: there is none."""
        return self._late.get(call_id)

    def on_cancelled(self, event: protocol.ToolCancelled) -> None:
        """Remove a call; an output that was not sent, or is dropped, becomes a note in the history."""
        call = self._waiting.pop(event.call_id, None) or self._sent.pop(event.call_id, None)
        if call is not None and call.output is not None:
            self._commands.remember("system", tool_result_note(call.request.name, call.output))
        elif call is not None:
            self._late[event.call_id] = call.request
            if len(self._late) > _MAX_LATE_CALLS:
                self._late.popitem(last=False)
        if not self._waiting:
            self._request_by_s = None

    def send_outputs(self) -> None:
        """Send all outputs: the agent continues."""
        self._request_by_s = None
        self._sent, self._waiting = self._waiting, OrderedDict()
        for call_id, call in self._sent.items():
            call.is_sent = True
            self._commands.answer_tool(call_id, call.output or "")

    def defer_outputs(self) -> None:
        """Wait for the client's ``response.create``."""
        self._request_by_s = self._clock() + _REQUEST_S

    def tick(self, turn_id: str) -> bool:
        """Act on timeouts that have expired.

        Args:
            turn_id: The agent's id of the current turn; empty: it is not known yet.

        Returns:
            Whether outputs were sent without a request: the rest of this turn is not for the client.
        """
        now_s = self._clock()
        if self._request_by_s is not None and now_s >= self._request_by_s:
            self.send_outputs()
            self._turn_id, self._silence_at_s = turn_id, now_s + _SILENCE_DELAY_S
            return True
        if self._silence_at_s is not None and now_s >= self._silence_at_s:
            self.silence_agent()
        return False

    def silence_agent(self) -> None:
        """Interrupt the agent if it got outputs without a request."""
        if self._silence_at_s is not None:
            self._silence_at_s = None
            self._commands.interrupt(self._turn_id or None)


def tool_result_note(name: str, output: str) -> str:
    """The agent's note of an output for which its turn no longer waits."""
    return f"The function {name} has returned: {output if output.strip() else 'nothing'}"
