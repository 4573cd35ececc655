"""The state of one call, and what it measures. Every time is given by the caller (seconds of one clock)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from load.microphone import Spoken
from parley import protocol
from parley_client.events import AgentAudio, CallEvent

_GAP_MS = 20.0
"""Shorter ones are the network's and this process's, and a client's buffer fills them."""
_WORTH_STOPPING_MS = 700.0
"""An answer that has less left when it is spoken over may as well end."""
_AFTER_CUT_OFF_S = 3.0
"""The rest of a turn that was cut off has its own answer, or none."""


class CallError(Exception):
    """Something that counts against the server; the text is one of few, because locust counts by it."""


class LostError(CallError):
    """The call broke, or ended without the caller's wish."""


class RefusedError(CallError):
    """The call was not accepted; the text is the error's code."""


class NoAnswerError(CallError):
    """Speech without an answer."""


class CutOffError(CallError):
    """An answer that began before the end of speech."""


class UnderrunError(CallError):
    """An answer whose playback stood still."""


class MissedError(CallError):
    """Speech over an answer that did not stop it."""


class ServerError(CallError):
    """An ``error`` event of a call that goes on; the text is its code."""


@dataclass(frozen=True)
class Row:
    """One measurement; it becomes one event of locust."""

    name: str
    ms: float | None = None
    """None: it was counted, and has no time."""
    error: CallError | None = None


@dataclass(eq=False)
class Answer:
    """The audio of one response, as it arrives."""

    turn: int
    first_s: float
    """When its first piece came."""
    last_s: float
    """When its last piece so far came."""
    plays_until_s: float
    """When a player that began with the first piece has played all that came."""
    audio_s: float = 0.0
    longest_gap_s: float = 0.0
    """Between the arrivals of two pieces."""
    underrun_s: float = 0.0
    """How long the player had nothing to play, in all."""
    halted: bool = False
    """The server asked the player to wait, so that its silence is no underrun."""
    is_over: bool = False

    def add(self, at_s: float, length_s: float) -> None:
        """A piece arrives."""
        if self.audio_s:
            self.longest_gap_s = max(self.longest_gap_s, at_s - self.last_s)
            self.underrun_s += max(0.0, at_s - self.plays_until_s)
        self.plays_until_s = max(self.plays_until_s, at_s) + length_s
        self.last_s = at_s
        self.audio_s += length_s


@dataclass(eq=False)
class Speech:
    """A sentence of the caller, and what came of it."""

    spoken: Spoken
    expects_answer: bool
    over: str = ""
    """The response that was heard when it began; empty: none."""
    over_heard_ms: float = 0.0
    """How much of that response had been heard."""
    answer: Answer | None = None
    """The first that began after the end of speech."""
    early: Answer | None = None
    """One that began before the end of speech."""
    interrupted: bool = False
    """It stopped the response that it was spoken over."""
    settled: bool = False
    """The caller waits for no answer any more."""


class CallState:
    """What has happened so far.

    Args:
        report: gets every measurement.
        began_s: when the call was begun.
    """

    def __init__(self, report: Callable[[Row], None], began_s: float) -> None:
        self._report = report
        self._began_s = began_s
        self._speeches: list[Speech] = []
        self._answers: dict[str, Answer] = {}
        self._halted_s: dict[str, float] = {}
        self._tool_turns: set[int] = set()
        self.connected = False
        self.refusal = ""
        """Code of the error that the server answered instead of ``connected``."""
        self.closed = ""
        """Reason of the end, as the server says it."""
        self.greeting: Answer | None = None
        """What the agent said before the caller did."""

    # --- the caller ---------------------------------------------------------------------------------------

    def say(
        self, spoken: Spoken, *, expects_answer: bool, over: str | None = None, heard_ms: float = 0.0
    ) -> Speech:
        """The caller begins a sentence.

        Args:
            spoken: when it is spoken.
            expects_answer: whether a missing answer counts against the server.
            over: the response that is being heard; None: none.
            heard_ms: how much of it was heard.
        """
        speech = Speech(spoken, expects_answer, over or "", heard_ms)
        self._speeches.append(speech)
        return speech

    def settle(self, speech: Speech) -> None:
        """Count what a sentence should have had and had not; the caller waits no longer."""
        speech.settled = True
        if speech.expects_answer and speech.answer is None and speech.early is None:
            self._report(Row("first audio", error=NoAnswerError("no answer")))
        below = self._answers.get(speech.over)
        if below is not None and below.is_over and not speech.interrupted:
            left_ms = 1000 * below.audio_s - speech.over_heard_ms
            if left_ms >= _WORTH_STOPPING_MS:
                self._report(Row("interruption", error=MissedError("the answer went on")))

    def settle_greeting(self) -> None:
        """Count a greeting that did not come."""
        if self.greeting is None:
            self._report(Row("greeting", error=NoAnswerError("no greeting")))

    def is_answered(self, speech: Speech, now: float) -> bool:
        """Whether an answer has begun, or none is to be expected any more."""
        if speech.answer is not None:
            return True
        early, ended_s = speech.early, speech.spoken.ended_s
        return early is not None and early.is_over and now > ended_s + _AFTER_CUT_OFF_S

    def is_settled(self, speech: Speech, now: float) -> bool:
        """Whether all audio of the answer has come."""
        return self.is_answered(speech, now) and (speech.answer is None or speech.answer.is_over)

    # --- the server ---------------------------------------------------------------------------------------

    def on_event(self, event: CallEvent, now: float) -> None:
        """An event arrives."""
        match event:
            case protocol.Connected():
                self.connected = True
                self._report(Row("connect", 1000 * (now - self._began_s)))
            case protocol.ErrorEvent():
                self._on_error(event.code)
            case protocol.Closed():
                self.closed = event.reason
            case protocol.ToolRequest() | protocol.ToolRun():
                self._tool_turns.add(event.turn)
            case protocol.ResponseDone():
                self._finish(event.response_id, whole=True)
            case AgentAudio() if len(event.samples):
                self._on_audio(event, now)
            case protocol.Paused() | protocol.Resumed() | protocol.Interrupted():
                self._on_order(event, now)
            case _:
                pass

    def _on_error(self, code: str) -> None:
        if self.connected:
            self._report(Row("error", error=ServerError(code)))
        else:
            self.refusal = self.refusal or code

    def _on_order(self, order: protocol.Paused | protocol.Resumed | protocol.Interrupted, now: float) -> None:
        """The server halts the player, lets it go on, or stops it."""
        match order:
            case protocol.Paused():
                self._halted_s[order.response_id] = now
                if order.response_id in self._answers:
                    self._answers[order.response_id].halted = True
            case protocol.Resumed():
                self._halted_s.pop(order.response_id, None)
            case protocol.Interrupted():
                self._on_interrupted(order.response_id, now)

    def _on_audio(self, audio: AgentAudio, now: float) -> None:
        answer = self._answers.get(audio.response_id)
        if answer is None:
            answer = Answer(audio.turn, first_s=now, last_s=now, plays_until_s=now)
            self._answers[audio.response_id] = answer
            self._assign(answer, now)
        answer.add(now, audio.duration_ms / 1000)

    def _assign(self, answer: Answer, now: float) -> None:
        """Find out what a new answer answers, and how long that took."""
        speech = self._answered_at(now)
        if speech is None:
            if self.greeting is None:
                self.greeting = answer
                self._report(Row("greeting", 1000 * (now - self._began_s)))
            return
        if now < speech.spoken.ended_s:
            if speech.early is None:
                self._report(Row("first audio", error=CutOffError("answered before the end of speech")))
            speech.early = answer
        elif speech.answer is None:
            speech.answer = answer
            # The rest of a turn that was cut off has another latency, and a late answer counts as none.
            if speech.early is None and not speech.settled:
                self._report(Row("first audio", 1000 * (now - speech.spoken.ended_s)))

    def _answered_at(self, now: float) -> Speech | None:
        """What an answer that begins now belongs to; None: the caller has not spoken yet."""
        begun = [speech for speech in self._speeches if speech.spoken.began_s <= now]
        if not begun:
            return None
        # An answer may be late, and the caller has begun to speak again.
        if len(begun) > 1 and now < begun[-1].spoken.ended_s and begun[-2].answer is None:
            return begun[-2]
        return begun[-1]

    def _on_interrupted(self, response_id: str, now: float) -> None:
        answer = self._answers.get(response_id)
        halted_s = self._halted_s.pop(response_id, now)
        for speech in reversed(self._speeches):
            if answer is not None and speech.over == response_id and not speech.interrupted:
                speech.interrupted = True
                began_s = speech.spoken.began_s
                self._report(Row("interruption", 1000 * max(0.0, answer.last_s - began_s)))
                self._report(Row("silence", 1000 * max(0.0, halted_s - began_s)))
                break
        self._finish(response_id, whole=False)

    def _finish(self, response_id: str, *, whole: bool) -> None:
        answer = self._answers.get(response_id)
        if answer is None or answer.is_over:
            return
        answer.is_over = True
        self._report(Row("gap", 1000 * answer.longest_gap_s))
        # A tool that takes its time is not the synthesizer's silence.
        if not whole or answer.halted or answer.turn in self._tool_turns:
            return
        underrun_ms = 1000 * answer.underrun_s
        error = UnderrunError("playback stood still") if underrun_ms > _GAP_MS else None
        self._report(Row("underrun", underrun_ms, error))
