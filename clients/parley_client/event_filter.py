"""Events of a server that goes on with a session, without those that the application has already.

The checkpoint from which a server goes on can be a moment older than the events that came, and the user's
audio since then is recognised again. So some events come twice, and the ends of some never come.
"""

from __future__ import annotations

from parley import protocol
from parley.checkpoint import AgentTurnState
from parley_client.events import AgentAudio, ServerEvent
from parley_client.progress import ResponseTracker


class MovedEvents:
    """Passes events on; from the first :meth:`begin` on, each only once."""

    def __init__(self, responses: ResponseTracker) -> None:
        self._responses = responses
        self.is_moved = False
        """Whether the session has gone on at another server."""
        self._final_utterance = 0
        self._measured_turn = 0
        self._agent_state = ""
        self._goes_on_listening = True
        self._is_speaking = False
        self._stopped_at_ms = -1

    def begin(self, agent: AgentTurnState | None, *, unanswered: bool) -> list[ServerEvent]:
        """Another server goes on.

        Returns:
            The ends of what it does not go on with: responses that it knows nothing of, and pauses.
        """
        self.is_moved = True
        self._goes_on_listening = agent is None and not unanswered
        name = agent.response_id if agent is not None else None
        lost = [
            (turn, response_id) for turn, response_id in self._responses.unfinished() if response_id != name
        ]
        ends: list[ServerEvent] = [
            protocol.Interrupted(
                turn=turn,
                response_id=response_id,
                played_ms=self._responses.played_ms(response_id),
                spoken_text="",
                reason="client",
            )
            for turn, response_id in lost
        ]
        ends += [
            protocol.Resumed(turn=turn, response_id=response_id, reason="noise")
            for turn, response_id in self._responses.paused()
            if (turn, response_id) not in lost
        ]
        return ends

    def pass_on(self, event: ServerEvent) -> list[ServerEvent]:
        """The event, or nothing if the application has it."""
        if self.is_moved and self._is_repeated(event):
            return []
        self._remember(event)
        return [event]

    def _is_repeated(self, event: ServerEvent) -> bool:
        match event:
            case protocol.ResponseText() | AgentAudio() | protocol.ResponseDone():
                return not self._responses.is_open(event.response_id)
            case protocol.Paused() | protocol.Interrupted():
                return self._responses.is_interrupted(event.response_id)
            case protocol.Resumed():
                return (event.turn, event.response_id) not in self._responses.paused()
            case _:
                return self._is_known(event)

    def _is_known(self, event: ServerEvent) -> bool:
        """Whether an event that is not about a response was passed on, perhaps in other words."""
        known = False
        match event:
            case protocol.Connected():
                known = True
            case protocol.Transcript():
                known = event.utterance <= self._final_utterance
            case protocol.TurnMetrics():
                known = event.turn <= self._measured_turn
            case protocol.AgentState():
                # Every session begins so, even if the agent's turn then goes on.
                is_first, self._goes_on_listening = not self._goes_on_listening, True
                known = event.state == self._agent_state or (is_first and event.state == "listening")
            case protocol.SpeechStarted():
                known = self._is_speaking or event.at_ms <= self._stopped_at_ms
            case protocol.SpeechStopped():
                known = not self._is_speaking
            case _:
                pass
        return known

    def _remember(self, event: ServerEvent) -> None:
        match event:
            case protocol.Transcript(is_final=True):
                self._final_utterance = max(self._final_utterance, event.utterance)
            case protocol.TurnMetrics():
                self._measured_turn = max(self._measured_turn, event.turn)
            case protocol.AgentState():
                self._agent_state = event.state
            case protocol.SpeechStarted():
                self._is_speaking = True
            case protocol.SpeechStopped():
                self._is_speaking = False
                self._stopped_at_ms = event.at_ms
            case _:
                pass
