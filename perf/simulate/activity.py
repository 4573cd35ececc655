"""Whether anything is going on in a call, from its events as they come."""

from __future__ import annotations

from parley import protocol
from simulate.log import Event, Sound


class Activity:
    """Follows the events of one call. Times are seconds of the call."""

    def __init__(self) -> None:
        self._state = "listening"
        self._hearing = False  # speech has begun and its final text is still to come
        self._waiting = False  # the agent waits for more of the turn
        self._open: set[int] = set()
        self._closed: dict[int, float] = {}
        self._responses: dict[str, float] = {}
        self._sounded: dict[int, float] = {}
        self._last_busy = 0.0

    @property
    def busy(self) -> bool:
        """Whether the server hears, thinks, waits or speaks."""
        return self._hearing or self._waiting or bool(self._open) or self._state != "listening"

    def note(self, event: Event, now: float) -> None:
        """An event arrives."""
        match event:
            case protocol.AgentState():
                self._state = event.state
            case protocol.SpeechStarted():
                self._hearing = True
            case protocol.Transcript(is_final=True):
                self._hearing = False
            case protocol.TurnDecision():
                self._waiting = event.decision == "wait"
                self._hearing = event.decision == "resume"
            case protocol.TurnMetrics():
                self._open.discard(event.turn)
                self._closed[event.turn] = now
            case (
                Sound()
                | protocol.ResponseText()
                | protocol.ToolRequest()
                | protocol.ToolRun()
                | protocol.ResponseDone()
            ):
                if event.turn not in self._closed:
                    self._open.add(event.turn)
                if isinstance(event, Sound):
                    self._responses.setdefault(event.response_id, now)
                    self._sounded.setdefault(event.turn, now)
            case _:
                pass
        if self.busy:
            self._last_busy = now

    def busy_at(self, now: float) -> None:
        """Something else was going on."""
        self._last_busy = max(self._last_busy, now)

    def idle_s(self, now: float) -> float:
        """How long nothing has been going on."""
        return 0.0 if self.busy else now - self._last_busy

    def answered(self, began: float, ended: float) -> bool:
        """Whether an answer that was first heard after ``began`` was done with after ``ended``.

        One that was heard before, and that is interrupted now, answers something else.
        """
        return any(
            at >= ended and self._sounded.get(turn, -1.0) >= began for turn, at in self._closed.items()
        )

    def response_began(self, response_id: str) -> float:
        """When the first audio of a response came."""
        return self._responses.get(response_id, 0.0)
