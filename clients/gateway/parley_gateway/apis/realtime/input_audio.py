"""The user's turns: OpenAI's input audio buffer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from parley import protocol
from parley_client.events import add_transcript
from parley_gateway.apis.realtime.items import InputTurn, Items, check_commit, stable_words
from parley_gateway.apis.realtime.server_events import ClientEventError, Emit
from parley_gateway.apis.realtime.session_config import SessionConfig

_DECISION_S = 3.0
"""The agent decides on a pause within this time; speech without a decision was no turn (seconds)."""
_MAX_GAP_MS = 2_000
"""Utterances over the agent's speech with at most this gap belong to one turn."""
_MAX_COMMITTED = 16
"""Turns that the client has committed and that have no text yet."""
_MAX_UTTERANCES = 256


@dataclass
class _UserTurn(InputTurn):
    announced: bool = False
    """Whether ``speech_started`` was sent."""
    speaking: bool = True
    texts: dict[int, str] = field(default_factory=dict)
    """Final transcripts, by utterance."""
    words: dict[int, list[protocol.Word]] = field(default_factory=dict)
    """Their words, where the client wants log probabilities."""
    text: str = ""
    """The final transcripts together."""
    decided: str = ""
    """What the agent has ended turns with by itself, before it reached the client's commit."""


class InputState(msgspec.Struct, frozen=True):
    """What outlives the connection."""

    committed_ms: float
    turn: _UserTurn | None
    committed: list[_UserTurn]


class UserTurns:
    """Sends the user's speech events, and makes an item of each turn.

    During the agent's turn ``speech_started`` is withheld until the speech is an interruption: clients
    discard the audio of a response at that event, and would do so after a cough.
    """

    def __init__(self, config: SessionConfig, emit: Emit, items: Items, clock: Callable[[], float]) -> None:
        self._config = config
        self._emit = emit
        self._items = items
        self._clock = clock
        self._turn: _UserTurn | None = None
        self._agent_busy = False
        self._appended_ms = 0.0
        self._committed_ms = 0.0
        """Audio of turns that are over."""
        self._committed: deque[_UserTurn] = deque()
        self._decide_by_s: float | None = None

    @property
    def due(self) -> float | None:
        """The time of the next :meth:`tick`; None: none is needed."""
        return self._decide_by_s

    @property
    def awaits_text(self) -> bool:
        """Whether the text of a committed turn is missing."""
        return bool(self._committed)

    @property
    def _now_ms(self) -> int:
        return round(self._appended_ms)

    def state(self) -> InputState:
        """What outlives the connection."""
        return InputState(self._committed_ms, self._turn, list(self._committed))

    def restore(self, state: InputState, audio_ms: int) -> None:
        """Go on behind ``audio_ms`` of the user's audio; what came later is lost with the connection."""
        self._appended_ms = audio_ms
        self._committed_ms = min(state.committed_ms, audio_ms)
        for turn in state.committed:
            self._complete(turn, turn.decided)
        self._turn = state.turn
        if self._turn is not None:
            self._turn.speaking = False
            self._decide_by_s = self._clock() + _DECISION_S

    def on_audio(self, length_ms: float) -> None:
        """Count audio of the client."""
        self._appended_ms += length_ms

    def commit(self) -> None:
        """End the turn for the client, or raise ClientEventError if it has no audio."""
        check_commit(self._appended_ms - self._committed_ms)
        if len(self._committed) >= _MAX_COMMITTED:
            raise ClientEventError("Too many turns wait to be transcribed.", code="too_many_turns")
        turn = self._turn or _UserTurn(round(self._committed_ms))
        self._turn, self._decide_by_s = None, None
        turn.start_ms, turn.end_ms = round(self._committed_ms), self._now_ms
        self._end(turn)
        self._committed.append(turn)

    def clear(self) -> None:
        """Discard what is not committed."""
        self._turn, self._decide_by_s = None, None
        self._committed_ms = self._appended_ms
        self._emit("input_audio_buffer.cleared")

    def on_agent_state(self, event: protocol.AgentState) -> None:
        """Handle a new state of the agent."""
        self._agent_busy = event.state != "listening"
        turn = self._turn
        if not self._agent_busy and turn is not None and not turn.announced and turn.speaking:
            self._announce(turn)  # the agent's speech is over

    def on_speech_started(self, event: protocol.SpeechStarted) -> None:
        """Begin a turn, or continue the current one."""
        if self._committed and event.at_ms < self._committed[-1].end_ms:
            return  # it belongs to a turn that the client has committed
        self._decide_by_s = None
        turn = self._turn
        if turn is not None and (turn.announced or turn.speaking or event.at_ms - turn.end_ms <= _MAX_GAP_MS):
            turn.speaking = True
        else:
            turn = self._turn = _UserTurn(event.at_ms)
        detection = self._config.detection
        if not self._agent_busy or detection is None or detection.interrupt_response is False:
            self._announce(turn)

    def on_speech_stopped(self, event: protocol.SpeechStopped) -> None:
        """Record the end of an utterance."""
        if self._turn is not None:
            self._turn.end_ms, self._turn.speaking = event.at_ms, False

    def on_transcript(self, event: protocol.Transcript) -> None:
        """Send what a transcript adds to the turn's text."""
        turn = self._turn
        if turn is None:
            return
        if not event.is_final:
            stable = stable_words(turn.partial, event.text)
            turn.partial = event.text
            self._stream(turn, f"{turn.text} {stable}".strip())
            return
        turn.partial = ""
        turn.text = add_transcript(turn.texts, event)
        if self._config.wants_logprobs:
            turn.words[event.utterance] = event.words
        if len(turn.texts) > _MAX_UTTERANCES:
            oldest = min(turn.texts)
            del turn.texts[oldest]
            turn.words.pop(oldest, None)
        self._stream(turn, turn.text)
        if turn.announced and not turn.speaking:
            self._decide_by_s = self._clock() + _DECISION_S

    def on_interruption(self) -> None:
        """The user's speech has interrupted the agent: announce the turn."""
        if self._turn is not None:
            self._announce(self._turn)

    def on_decision(self, event: protocol.TurnDecision) -> None:
        """Handle the decision on a pause, or the text of a turn that the client has committed."""
        self._decide_by_s = None
        if event.reason == "requested":
            if self._committed:
                committed = self._committed.popleft()
                self._complete(committed, f"{committed.decided} {event.text}".strip())
            return
        if self._committed:
            # The agent has not reached the commit yet: the words before it belong to the committed turn.
            if event.decision == "commit":
                committed = self._committed[0]
                committed.decided = f"{committed.decided} {event.text}".strip()
            return
        turn = self._turn
        if turn is None:
            turn = self._turn = _UserTurn(max(0, self._now_ms - event.silence_ms), self._now_ms)
        self._announce(turn)
        if event.decision == "commit":
            self._finish(turn, event.text)

    def tick(self) -> None:
        """End a turn for which no decision came in time."""
        if self._decide_by_s is None or self._clock() < self._decide_by_s:
            return
        self._decide_by_s = None
        if self._turn is not None:
            self._finish(self._turn, self._turn.text)

    def on_idle_timeout(self) -> None:
        """Make an item of a long silence of the user after which the agent speaks."""
        silent_ms = self._config.idle_timeout_ms or 0
        turn = _UserTurn(max(0, self._now_ms - silent_ms), self._now_ms)
        self._emit(
            "input_audio_buffer.timeout_triggered",
            audio_start_ms=turn.start_ms,
            audio_end_ms=turn.end_ms,
            item_id=turn.item_id,
        )
        self._end(turn)

    def _announce(self, turn: _UserTurn) -> None:
        if turn.announced or self._config.detection is None:
            return
        turn.announced = True
        start_ms = max(0, turn.start_ms - self._config.padding_ms)
        self._emit("input_audio_buffer.speech_started", audio_start_ms=start_ms, item_id=turn.item_id)
        self._stream(turn, turn.text)

    def _finish(self, turn: _UserTurn, text: str) -> None:
        self._turn = None
        end_ms = turn.end_ms or self._now_ms
        self._emit("input_audio_buffer.speech_stopped", audio_end_ms=end_ms, item_id=turn.item_id)
        self._end(turn)
        self._complete(turn, text)

    def _end(self, turn: _UserTurn) -> None:
        self._committed_ms = self._appended_ms
        self._items.commit_turn(turn)

    def _stream(self, turn: _UserTurn, text: str) -> None:
        if self._config.transcription is not None and turn.announced:
            self._items.send_delta(turn, text)

    def _complete(self, turn: _UserTurn, text: str) -> None:
        self._items.store_transcript(turn, text)
        if self._config.transcription is not None:
            words = [word for utterance in sorted(turn.words) for word in turn.words[utterance]]
            self._items.complete_turn(turn, text, words if self._config.wants_logprobs else None)
