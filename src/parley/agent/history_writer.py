"""What is written into the history besides the user's turns, and corrected in it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from parley.agent.memory import ToolRound, remember
from parley.agent.playout import HeardSpeech, Playout
from parley.agent.turn import AgentTurn
from parley.errors import InvalidMessageError, OverloadedError
from parley.llm.history import History
from parley.llm.messages import ChatMessage
from parley.protocol import Remember

_MAX_ANSWERS = 16
"""So many may be corrected; a client knows soon what it has played."""
_MAX_NOTES = 256


@dataclass(frozen=True)
class _Answer:
    rounds: Sequence[ToolRound]
    playout: Playout
    messages: Sequence[ChatMessage]
    """As the history has them."""


class HistoryWriter:
    """Writes the agent's turns into the history, and what the client wants there.

    Args:
        history: of the session.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        self._agent_turns: OrderedDict[str, _Answer] = OrderedDict()
        self._notes: list[Remember] = []

    def add(self, turn: AgentTurn, heard: HeardSpeech | None) -> None:
        """A turn is over; None: all that there was to hear was heard."""
        messages = turn.memory(heard)
        self._history.extend(messages)
        self._agent_turns[turn.response_id] = _Answer(turn.rounds, turn.playout, messages)
        if len(self._agent_turns) > _MAX_ANSWERS:
            self._agent_turns.popitem(last=False)

    def note(self, note: Remember) -> None:
        """Take what is to be remembered; it is written by :meth:`write_notes`.

        Raises:
            OverloadedError: too much is waiting to be remembered.
        """
        if len(self._notes) >= _MAX_NOTES:
            raise OverloadedError(f"{_MAX_NOTES} messages are waiting to be remembered")
        self._notes.append(note)

    def write_notes(self) -> None:
        """Between two turns: what belongs to one stays together."""
        notes, self._notes = self._notes, []
        for note in notes:
            if note.role == "user":
                self._history.add_user(note.text.strip())
            else:
                self._history.extend([ChatMessage(role=note.role, content=note.text.strip())])

    def correct(self, response_id: str, played_ms: float) -> HeardSpeech:
        """So much of an answer was heard; the history has only that from now on.

        An answer of which nothing is in the history stays forgotten.

        Raises:
            InvalidMessageError: nothing is known of the answer any more, or it was not spoken.
        """
        answer = self._agent_turns.get(response_id)
        if answer is None:
            raise InvalidMessageError(f"response {response_id!r} is not one of the last {_MAX_ANSWERS}")
        if not answer.playout.sent_ms:
            raise InvalidMessageError(f"response {response_id!r} has no audio")
        heard = answer.playout.heard_after(played_ms)
        messages = remember(answer.rounds, heard)
        if answer.messages:
            if not self._history.replace(answer.messages, messages):
                raise InvalidMessageError(f"response {response_id!r} is part of a summary, or forgotten")
            self._agent_turns[response_id] = _Answer(answer.rounds, answer.playout, messages)
        return heard if messages else HeardSpeech(heard.played_ms, ())
