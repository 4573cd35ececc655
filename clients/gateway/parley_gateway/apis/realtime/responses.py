"""Which of the agent's turns is which of the client's responses."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from parley import protocol
from parley_client.events import AgentAudio
from parley_gateway.apis.realtime.agent_commands import AgentCommands
from parley_gateway.apis.realtime.function_calls import DeferredToolOutputs, FunctionCalls
from parley_gateway.apis.realtime.response import Response, Status
from parley_gateway.apis.realtime.server_events import ClientEventError, usage_of

Content: TypeAlias = protocol.ResponseText | AgentAudio | protocol.ToolRequest | protocol.ResponseDone

_BATCH_S = 0.02
"""Calls of one round come at once; after so long without another they are all there (seconds)."""
_SPOKEN_S = 0.3
"""Silence after the last words of what is said before a call (seconds)."""
_STALLED_S = 1.5
"""The same where words are missing: the synthesizer may be late, or have left some out (seconds)."""
_USAGE_S = 5.0
"""What a turn cost comes when it was heard, half a second after its last audio or a bit later (seconds)."""
_CUT_USAGE_S = 0.2
"""The same after an interruption, where it comes at once (seconds)."""


class Responses:
    """There is at most one response at a time, and it is one turn of the agent's, or a part of one.

    A turn of the agent's waits for its functions; OpenAI's response ends with the calls, and what the agent
    says afterwards is the next response, which the client asks for when it has sent all outputs.

    Args:
        port: To the agent.
        make: Makes a response; gets the client's metadata.
        clock: Seconds, monotonic.
        unasked: Told when a turn of the agent's begins for which nobody has asked.
    """

    def __init__(
        self,
        port: AgentCommands,
        make: Callable[[dict[str, str] | None], Response],
        clock: Callable[[], float],
        unasked: Callable[[], None],
    ) -> None:
        self.calls = FunctionCalls()
        self._outputs = DeferredToolOutputs(self.calls, port, clock)
        self._port = port
        self._make = make
        self._clock = clock
        self._unasked = unasked
        self._active: Response | None = None
        self._turn = 0
        self._turn_id = ""
        """The agent's turn under way, or the last one."""
        self._over = 0
        """Turns up to this one are over, for the client."""
        self._drop_next = False
        self._due: float | None = None

    @property
    def active(self) -> Response | None:
        """The response that is not over."""
        return self._active

    @property
    def due(self) -> float | None:
        """When :meth:`tick` has something to do."""
        return min((time for time in (self._due, self._outputs.due) if time is not None), default=None)

    # --- what the client wants --------------------------------------------------------------

    def check_idle(self) -> None:
        """Refuse another response while there is one.

        Raises:
            Refusal: there is one.
        """
        active = self._active
        if active is not None and active.ended is not None:
            self._finish(None)  # it is over but for what it cost
        elif active is not None and active.calls and self.calls.complete:
            self._end("completed", None, None)  # the client knows of all calls before it is told so
        elif active is not None:
            message = (
                f"Conversation already has an active response in progress: {active.id}. "
                "Wait until the response is finished before creating a new one."
            )
            raise ClientEventError(message, code="conversation_already_has_active_response")

    def create(self, metadata: dict[str, str] | None) -> bool:
        """Begin a response; the agent must not have one.

        Returns:
            Whether the agent has to be asked for it; False: it only waits for functions.
        """
        self._outputs.hush()
        continues = self.calls.waiting
        response = self._begin(metadata)
        if continues:
            response.bind(self._turn, self._turn_id)
            self.deliver()
        return not continues

    def deliver(self) -> None:
        """Hand the agent the outputs of its functions, if all are there and somebody wants to hear more."""
        if not self.calls.waiting or not self.calls.complete:
            return
        active = self._active
        if active is not None and not active.calls:
            self._outputs.answer()
        else:
            self._outputs.expect_answer()

    def cancel(self, response_id: str | None, *, asked: bool) -> None:
        """Stop the response.

        Args:
            response_id: OpenAI's id; None: whichever.
            asked: whether the agent has been asked for it.

        Raises:
            Refusal: it is over, or there is none.
        """
        active = self._active
        if active is None or response_id not in (None, active.id):
            message = "Cancellation failed: no active response found"
            raise ClientEventError(message, code="response_cancel_not_active")
        if active.turn is not None:
            self._port.interrupt(active.agent_id or None)
        elif asked:
            # The agent begins with it, hears of the interruption then, and says what it cost.
            self._drop_next = True
            self._port.interrupt(None)
        active.speaker.cut()
        self._end("cancelled", "client_cancelled", _CUT_USAGE_S if active.turn is not None else None)

    # --- what the agent does ----------------------------------------------------------------

    def hear(self, event: Content) -> None:
        """Content of the agent's turn."""
        if event.turn <= self._over:
            return
        is_new = event.turn != self._turn
        if is_new:
            self._turn, self._turn_id = event.turn, ""
            if self._drop_next:
                self._drop_next = False
                self._over = event.turn
                return
        if not isinstance(event, protocol.ToolRequest):
            self._turn_id = event.response_id
        response = self._response_for(event, is_new)
        if response is not None and response.ended is None:
            self._tell(response, event)

    def _tell(self, response: Response, event: Content) -> None:
        match event:
            case protocol.ResponseText():
                response.write(event.text)
            case AgentAudio():
                response.speak(event)
            case protocol.ToolRequest():
                self.calls.called(event)
                response.call(event)
            case protocol.ResponseDone():
                self._over = event.turn
                response.finish_content(complete=True)
                self._end("failed" if response.failure else "completed", None, _USAGE_S)
                return
        if response.calls:
            self._wait_for_rest(response)

    def interrupted(self, event: protocol.Interrupted) -> None:
        """The agent was made to stop."""
        self._over = max(self._over, event.turn)
        if self._drop_next:
            self._drop_next = False
        response = self._active
        if response is None or response.turn not in (None, event.turn):
            return
        if response.turn is None and event.reason != "client":
            return  # it is still to begin
        response.heard(event.spoken_text)
        response.speaker.cut()
        if response.ended is None or response.ended[0] == "completed":
            reason = "client_cancelled" if event.reason == "client" else "turn_detected"
            self._end("cancelled", reason, _CUT_USAGE_S)

    def metrics(self, event: protocol.TurnMetrics) -> None:
        """What a turn of the agent's cost: it is over."""
        self._over = max(self._over, event.turn)
        active = self._active
        if active is not None and active.ended is not None and active.turn == event.turn:
            self._finish(event)

    def tool_cancelled(self, event: protocol.ToolCancelled) -> None:
        """The agent does not wait for a function any more."""
        untold = self.calls.dropped(event.call_id)
        if untold is not None:
            self._port.remember("system", untold)
        self._outputs.dropped()

    def failed(self, event: protocol.ErrorEvent) -> bool:
        """Something went wrong; returns whether it belongs to the response under way."""
        active = self._active
        if active is None or active.ended is not None:
            return False
        active.failure = event
        return True

    def expect_turn(self) -> None:
        """The user's turn is over: the agent's next one is wanted."""
        self._drop_next = False

    def close(self) -> None:
        """Nothing more of the response follows."""
        active = self._active
        if active is None:
            return
        if active.ended is None:
            self._end("cancelled", None, None)
        else:
            self._finish(None)

    def tick(self) -> None:
        """Something that was waited for has not come."""
        if self._outputs.tick(self._turn_id):
            self._over = self._turn
        if self._due is None or self._clock() < self._due:
            return
        self._due = None
        active = self._active
        if active is None:
            return
        if active.ended is not None:
            self._finish(None)
        elif active.calls:
            active.finish_content(complete=True)
            self._end("completed", None, None)

    # --- one response -----------------------------------------------------------------------

    def _response_for(self, event: Content, is_new: bool) -> Response | None:
        """The response that an event belongs to; None: the client hears nothing of it."""
        active = self._active
        if active is not None and active.turn not in (None, event.turn):
            self.close()
            active = None
        if active is None:
            if self.calls.waiting and not isinstance(event, protocol.ToolRequest):
                return None  # the agent asks for a moment while functions run: too late for the last response
            if isinstance(event, protocol.ResponseDone):
                return None  # a turn of which nothing was said
            if is_new:
                self._unasked()
            active = self._begin(None)
        active.bind(event.turn, self._turn_id)
        return active

    def _begin(self, metadata: dict[str, str] | None) -> Response:
        response = self._active = self._make(metadata)
        self._due = None
        response.create()
        return response

    def _wait_for_rest(self, response: Response) -> None:
        """More calls of the same round may come, and what was said before them may still be spoken."""
        wait_s = _BATCH_S if response.is_silent else _SPOKEN_S if response.is_said else _STALLED_S
        self._due = self._clock() + wait_s

    def _end(self, status: Status, reason: str | None, usage_within_s: float | None) -> None:
        active = self._active
        if active is None:
            return
        active.ended = (status, reason)
        active.finish_content(complete=status == "completed")
        if usage_within_s is None:
            self._finish(None)
        else:
            self._due = self._clock() + usage_within_s

    def _finish(self, metrics: protocol.TurnMetrics | None) -> None:
        active, self._active, self._due = self._active, None, None
        if active is not None and active.ended is not None:
            status, reason = active.ended
            active.done(status, reason=reason, usage=usage_of(metrics))
