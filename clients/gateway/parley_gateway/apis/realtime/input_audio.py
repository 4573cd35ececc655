"""The user's turns: the input audio buffer, as OpenAI's clients see it."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from parley import protocol
from parley_gateway.apis.realtime.input_items import InputItems, InputTurn, stable_words
from parley_gateway.apis.realtime.items import Items
from parley_gateway.apis.realtime.server_events import ClientEventError, Emit
from parley_gateway.apis.realtime.session_config import SessionConfig

_LEAST_COMMIT_MS = 100
"""OpenAI takes no shorter turn."""
_DECISION_S = 3.0
"""A pause is judged within this; what was not judged was none of the user's turn (seconds)."""
_SAME_MS = 2_000
"""What is said over the agent belongs together if it is not longer apart."""
_COMMITTED = 16
"""Turns that were ended by the client and whose text is still on the way."""
_UTTERANCES = 256


@dataclass
class _UserTurn(InputTurn):
    """What the user is saying."""

    told: bool = False
    """Whether the client knows that the user speaks."""
    speaking: bool = True
    texts: OrderedDict[int, str] = field(default_factory=OrderedDict)
    """Of each utterance that is over."""

    @property
    def text(self) -> str:
        """All of what was said in utterances that are over."""
        return " ".join(text for text in self.texts.values() if text)


class UserTurns:
    """Tells the client when the user speaks, and makes an item of each turn.

    While the agent has its turn, a sound is not told before it is known to be an interruption: clients throw
    away what they have of the answer as soon as they hear of speech, and would do so for a cough.

    Args:
        config: Of the session.
        emit: Sends server events.
        items: Gets the user's items.
        clock: Seconds, monotonic.
    """

    def __init__(self, config: SessionConfig, emit: Emit, items: Items, clock: Callable[[], float]) -> None:
        self._config = config
        self._emit = emit
        self._inputs = InputItems(emit, items)
        self._clock = clock
        self._turn: _UserTurn | None = None
        self._agent_busy = False
        self._appended_ms = 0.0
        self._taken_ms = 0.0
        """Audio of turns that are over."""
        self._committed: deque[_UserTurn] = deque()
        self._decide_by: float | None = None

    @property
    def due(self) -> float | None:
        """When :meth:`tick` has something to do."""
        return self._decide_by

    @property
    def awaits_text(self) -> bool:
        """Whether the text of a turn that the client has ended is still on the way."""
        return bool(self._committed)

    @property
    def heard_ms(self) -> int:
        """Audio that the client has sent."""
        return round(self._appended_ms)

    @property
    def is_open(self) -> bool:
        """Whether the client knows that the user is speaking."""
        return self._turn is not None and self._turn.told

    # --- what the client does ---------------------------------------------------------------

    def appended(self, length_ms: float) -> None:
        """The client has sent audio."""
        self._appended_ms += length_ms

    def commit(self) -> None:
        """The client says that the turn is over.

        Raises:
            Refusal: there is no audio in it.
        """
        length_ms = self._appended_ms - self._taken_ms
        if length_ms < _LEAST_COMMIT_MS:
            message = (
                "Error committing input audio buffer: buffer too small. Expected at least "
                f"{_LEAST_COMMIT_MS}ms of audio, but buffer only has {length_ms:.2f}ms of audio."
            )
            raise ClientEventError(message, code="input_audio_buffer_commit_empty")
        if len(self._committed) >= _COMMITTED:
            raise ClientEventError("Too many turns wait to be transcribed.", code="too_many_turns")
        turn = self._turn or _UserTurn(round(self._taken_ms))
        self._turn, self._decide_by = None, None
        turn.start_ms, turn.end_ms = round(self._taken_ms), self.heard_ms
        self._end(turn)
        self._committed.append(turn)

    def clear(self) -> None:
        """Forget what is not committed."""
        self._turn, self._decide_by = None, None
        self._taken_ms = self._appended_ms
        self._emit("input_audio_buffer.cleared")

    # --- what the agent hears ---------------------------------------------------------------

    def agent_state(self, state: str) -> None:
        """What the agent does now."""
        self._agent_busy = state != "listening"
        turn = self._turn
        if not self._agent_busy and turn is not None and not turn.told and turn.speaking:
            self._tell(turn)  # it is not over the agent's speech any more

    def speech_started(self, at_ms: int) -> None:
        """The user speaks."""
        self._decide_by = None
        turn = self._turn
        if turn is not None and (turn.told or turn.speaking or at_ms - turn.end_ms <= _SAME_MS):
            turn.speaking = True
        else:
            turn = self._turn = _UserTurn(at_ms)
        detection = self._config.detection
        held = self._agent_busy and detection is not None and detection.interrupt_response is not False
        if not held:
            self._tell(turn)

    def speech_stopped(self, at_ms: int) -> None:
        """The user is silent."""
        if self._turn is not None:
            self._turn.end_ms, self._turn.speaking = at_ms, False

    def transcript(self, event: protocol.Transcript) -> None:
        """What is being said, or was."""
        turn = self._turn
        if turn is None:
            return
        if not event.is_final:
            stable = stable_words(turn.partial, event.text)
            turn.partial = event.text
            self._stream(turn, f"{turn.text} {stable}".strip())
            return
        turn.partial = ""
        turn.texts[event.utterance] = event.text
        if len(turn.texts) > _UTTERANCES:
            turn.texts.popitem(last=False)
        self._stream(turn, turn.text)
        if turn.told and not turn.speaking:
            self._decide_by = self._clock() + _DECISION_S

    def interrupted(self) -> None:
        """What the user says counts: the agent was made to stop by it."""
        if self._turn is not None:
            self._tell(self._turn)

    def decided(self, event: protocol.TurnDecision) -> None:
        """A pause was judged, or the text of a turn is there that the client has ended."""
        self._decide_by = None
        if event.reason == "requested":
            if self._committed:
                self._transcribed(self._committed.popleft(), event.text)
            return
        turn = self._turn
        if turn is None:
            turn = self._turn = _UserTurn(max(0, self.heard_ms - event.silence_ms), self.heard_ms)
        self._tell(turn)
        if event.decision == "commit":
            self._finish(turn, event.text)

    def tick(self) -> None:
        """Nobody has judged a pause in time: it was no turn of the user."""
        if self._decide_by is None or self._clock() < self._decide_by:
            return
        self._decide_by = None
        if self._turn is not None:
            self._finish(self._turn, self._turn.text)

    def idle(self) -> None:
        """The agent speaks because nobody has said anything for so long."""
        silent_ms = self._config.idle_timeout_ms or 0
        turn = _UserTurn(max(0, self.heard_ms - silent_ms), self.heard_ms)
        self._emit(
            "input_audio_buffer.timeout_triggered",
            audio_start_ms=turn.start_ms,
            audio_end_ms=turn.end_ms,
            item_id=turn.item_id,
        )
        self._end(turn)

    # --- telling it -------------------------------------------------------------------------

    def _tell(self, turn: _UserTurn) -> None:
        if turn.told or self._config.detection is None:
            return
        turn.told = True
        start_ms = max(0, turn.start_ms - self._config.padding_ms)
        self._emit("input_audio_buffer.speech_started", audio_start_ms=start_ms, item_id=turn.item_id)
        self._stream(turn, turn.text)

    def _finish(self, turn: _UserTurn, text: str) -> None:
        self._turn = None
        end_ms = turn.end_ms or self.heard_ms
        self._emit("input_audio_buffer.speech_stopped", audio_end_ms=end_ms, item_id=turn.item_id)
        self._end(turn)
        self._transcribed(turn, text)

    def _end(self, turn: _UserTurn) -> None:
        """The turn is an item now."""
        self._taken_ms = self._appended_ms
        self._inputs.commit(turn)

    def _stream(self, turn: _UserTurn, text: str) -> None:
        if self._config.transcribes and turn.told:
            self._inputs.stream(turn, text)

    def _transcribed(self, turn: _UserTurn, text: str) -> None:
        self._inputs.write_down(turn, text)
        if self._config.transcribes:
            self._inputs.complete(turn, text)
