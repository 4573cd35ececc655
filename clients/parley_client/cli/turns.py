"""The turns of a played conversation: what happened in each, and how long it took."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from parley import protocol
from parley.errors import (
    AsrFallbackError,
    InvalidMessageError,
    InvalidToolCallError,
    LlmFallbackError,
    ToolTimeoutError,
    TtsFallbackError,
    UnknownToolCallError,
    UnsupportedLanguageError,
    UnsupportedSampleRateError,
    UnsupportedVoiceError,
)
from parley.protocol import Resumed, SpeechIgnored, ToolRequest, ToolRun, TurnMetrics
from parley_client.audio.playout import Heard, PlayoutClock
from parley_client.events import AgentAudio, CallEvent, Reconnected, Reconnecting, add_transcript

_REMEMBERED_TURNS = 64
_SPOKEN = ("words", "speech", "command")
"""Reasons of an interruption that is itself something said."""
HARMLESS = frozenset(
    error.code
    for error in (
        AsrFallbackError,
        LlmFallbackError,
        TtsFallbackError,
        ToolTimeoutError,
        InvalidToolCallError,
        UnknownToolCallError,
        InvalidMessageError,
        UnsupportedVoiceError,
        UnsupportedLanguageError,
        UnsupportedSampleRateError,
    )
)
"""Codes of errors that fail no turn: another model took over, the language model got the error and answered
without the tool, or the server refused a message and went on as before."""


@dataclass(eq=False)
class TurnReport:
    """One turn, from the user's first word to the end of the answer.

    Times ending in ``_s`` are seconds on the clock of the microphone that spoke.
    """

    name: str
    said: str = ""
    """What the user said, typed or pressed; empty: unknown."""
    heard: str = ""
    """The final transcript."""
    texts: dict[int, str] = field(default_factory=dict)
    """Its parts by utterance."""
    answer: str = ""
    """The agent's text; of an interrupted answer only what was spoken."""
    incomplete: bool = False
    """``max_tokens`` ended the answer: the last sentence of its text may not be spoken."""
    tools: list[ToolRequest | ToolRun] = field(default_factory=list)
    """Run by the client and by the server."""
    speech_began_s: float | None = None
    speech_ended_s: float | None = None
    """End of the user's speech; of typed text and keys, when they were sent."""
    detected_s: float | None = None
    """When the silence that ended the user's speech had lasted long enough (the server decides)."""
    answered_s: float | None = None
    """When the first sample of the answer was heard."""
    interrupted: bool = False
    """The user spoke over this answer."""
    barge_in: bool = False
    """This turn spoke over the answer before it."""
    in_gap: bool = False
    """That answer was silent at the interruption, because its audio came too late to follow without a gap."""
    silenced_s: float | None = None
    """When the answer that this turn spoke over fell silent: paused already, if it was."""
    resumed: Resumed | SpeechIgnored | None = None
    """The agent took this turn for no interruption and went on with its answer before."""
    goes_on: TurnReport | None = None
    """The turn whose answer that is; None: unknown."""
    cut_itself: bool = False
    """Something said in this very turn interrupted the answer to its beginning, and has its own answer."""
    audio_ms: int | None = None
    """Audio that was sent of the whole answer (milliseconds); None: it has no end yet, or was interrupted."""
    metrics: TurnMetrics | None = None
    """The server's own account."""
    moved: bool = False
    """The call changed its server in this turn: audio was sent again, faster than it was spoken."""
    failure: str = ""
    """The first failure that the server reported in this turn."""
    problem: str = ""
    """Why the turn did not go as planned."""
    noticed: asyncio.Event = field(default_factory=asyncio.Event)
    """The server has detected speech."""
    transcribed: asyncio.Event = field(default_factory=asyncio.Event)
    """A final transcript has come."""
    speaking: asyncio.Event = field(default_factory=asyncio.Event)
    """The answer is being heard."""
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    """The server is done with this turn."""
    answered_again: asyncio.Event = field(default_factory=asyncio.Event)
    """After it cut itself: another answer has begun."""

    @property
    def voice_to_voice_ms(self) -> float | None:
        """True end of the user's speech to the answer's first sample."""
        return _span_ms(self.speech_ended_s, self.answered_s)

    @property
    def stages(self) -> dict[str, float | None]:
        """Latencies of this turn by name (milliseconds); None: it has none, or none that is valid."""
        invalid = self.invalid_stages
        return {name: None if name in invalid else value for name, value in self._spans().items()}

    @property
    def invalid_stages(self) -> frozenset[str]:
        """Stages that the turn went through, whose measurement says nothing.

        Those of a turn in which the call moved, and spans whose end is before their beginning: of a clip in
        two parts, for example, whose first part was answered already. An interruption in a gap of the agent's
        audio stops nothing. A turn with a problem of which nothing was measured has its first stage.
        """
        spans = self._spans()
        if self.moved:
            return frozenset(spans)
        known = {name: value for name, value in spans.items() if value is not None}
        if self.problem and not known:
            return frozenset({"voice_to_voice"})
        negative = {name for name, value in known.items() if value < 0}
        return frozenset(negative | ({"barge_in_stop"} if self.in_gap else set()))

    def _spans(self) -> dict[str, float | None]:
        metrics = self.metrics or TurnMetrics(turn=0)
        return {
            "voice_to_voice": self.voice_to_voice_ms,
            "detection": _span_ms(self.speech_ended_s, self.detected_s),
            "from_detection": _span_ms(self.detected_s, self.answered_s),
            "asr_final": metrics.asr_final_ms,
            "end_of_turn": metrics.end_of_turn_ms,
            "llm_first_token": metrics.llm_first_token_ms,
            "llm_total": metrics.llm_total_ms,
            "tool": metrics.tool_ms,
            "tts_first_audio": metrics.tts_first_audio_ms,
            "first_audio": metrics.first_audio_ms,
            "barge_in_stop": _span_ms(self.speech_began_s, self.silenced_s) if self.barge_in else None,
        }


def _span_ms(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else 1000 * (end - begin)


def percentile(values: list[float], share: float) -> float | None:
    """The value below which ``share`` (0-1) of ``values`` lie, nearest rank; None: no values."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-len(ordered) * round(share * 1000) // 1000) - 1))]


_PlayerEvent: TypeAlias = AgentAudio | protocol.Paused | protocol.Resumed | protocol.Interrupted
_AnswerEvent: TypeAlias = (
    protocol.ResponseText
    | protocol.ToolRequest
    | protocol.ToolRun
    | protocol.ResponseDone
    | protocol.TurnMetrics
)


class TurnTracker:
    """Assigns each event to one of the user's turns.

    The server counts turns by what it heard; the script by what was said. A server turn belongs
    to the last scripted turn with a transcript that no server turn has answered yet. What the agent
    says of its own accord, as a greeting, belongs to none.
    """

    def __init__(self, on_heard: Callable[[Heard], None] | None = None) -> None:
        self._on_heard = on_heard
        self.playout = PlayoutClock(self._on_played)
        self.reports: list[TurnReport] = []
        self.began_s = 0.0
        """When the microphone's first sample was spoken: the server counts audio from there."""
        self.greeted = asyncio.Event()
        """The agent's first turn is over: a greeting, if there is one."""
        self._by_turn: dict[int, TurnReport] = {}
        self._by_response: dict[str, TurnReport] = {}
        self._unanswered: TurnReport | None = None
        self._moving = False
        """The call has left its server, and has no other one yet."""

    def begin(self, report: TurnReport) -> None:
        """The user begins to speak."""
        report.moved = self._moving
        self.reports.append(report)

    def enter(self, report: TurnReport, now: float) -> None:
        """The user types or presses keys; all of it is sent at ``now`` and is transcribed as it is."""
        report.speech_began_s = report.speech_ended_s = now
        report.heard = report.said
        self.begin(report)
        self._unanswered = report
        report.noticed.set()
        report.transcribed.set()

    def on_event(self, event: CallEvent, now: float) -> None:
        """An event arrives at ``now`` (seconds on the microphone's clock)."""
        self.playout.advance(now)
        match event:
            case protocol.SpeechStarted() if self.reports:
                self.reports[-1].noticed.set()
            case protocol.SpeechStopped() if self.reports:
                self.reports[-1].detected_s = self.began_s + event.detected_at_ms / 1000
            case protocol.Transcript(is_final=True) if self.reports:
                self._on_transcript(self.reports[-1], event)
            case protocol.SpeechIgnored():
                self._on_unanswered(event, self._newest_answered)
            case AgentAudio() | protocol.Paused() | protocol.Resumed() | protocol.Interrupted():
                self._on_playing(event, now)
            case (
                protocol.ResponseText()
                | protocol.ToolRequest()
                | protocol.ToolRun()
                | protocol.ResponseDone()
                | protocol.TurnMetrics()
            ):
                self._on_answer(event)
            case protocol.ErrorEvent() if event.code not in HARMLESS:
                self._on_failure(event)
            case Reconnecting() | Reconnected():
                self._on_move(is_over=isinstance(event, Reconnected))
            case _:
                pass

    def _on_move(self, *, is_over: bool) -> None:
        self._moving = not is_over
        for report in self.reports:
            if not report.settled.is_set():
                report.moved = True

    def answered_by(self, response_id: str) -> TurnReport:
        """The turn whose answer this is."""
        return self._by_response.get(response_id) or TurnReport("")

    def _on_transcript(self, report: TurnReport, event: protocol.Transcript) -> None:
        report.heard = add_transcript(report.texts, event)
        self._unanswered = report
        report.noticed.set()
        report.transcribed.set()

    def _on_failure(self, event: protocol.ErrorEvent) -> None:
        """An error names no turn: it is of the newest that waits for its answer, otherwise of the newest."""
        if not self.reports:
            self.begin(TurnReport("before the first turn"))
        waiting = (
            report
            for report in reversed(self.reports)
            if report.transcribed.is_set() and not report.settled.is_set()
        )
        report = next(waiting, self.reports[-1])
        report.failure = report.failure or f"{event.message} ({event.code})"

    # --- answers --------------------------------------------------------------------------

    def _on_answer(self, event: _AnswerEvent) -> None:
        report = self._report_of(event.turn)
        match event:
            case protocol.ResponseText():
                report.answer += event.text
            case protocol.ToolRequest() | protocol.ToolRun():
                report.tools.append(event)
            case protocol.ResponseDone():
                report.audio_ms = event.audio_ms
                report.incomplete = event.finish_reason == "length"
            case protocol.TurnMetrics():
                report.metrics = event
                report.settled.set()
                self.greeted.set()

    def _report_of(self, turn: int) -> TurnReport:
        if turn not in self._by_turn:
            report = self._unanswered or TurnReport("")
            self._unanswered = None
            self._by_turn[turn] = report
            report.answer, report.incomplete, report.audio_ms = "", False, None
            report.resumed = report.goes_on = None
            report.settled.clear()
            if report.cut_itself:
                report.answered_again.set()
            if len(self._by_turn) > _REMEMBERED_TURNS:
                del self._by_turn[next(iter(self._by_turn))]
        return self._by_turn[turn]

    # --- playing --------------------------------------------------------------------------

    def _on_playing(self, event: _PlayerEvent, now: float) -> None:
        report = self._report_of(event.turn)
        self._remember_response(event.response_id, report)
        match event:
            case AgentAudio():
                self.playout.push(event, now)
            case protocol.Paused():
                self.playout.pause(event.response_id, now)
            case protocol.Resumed():
                self.playout.resume(event.response_id, now)
                self._on_unanswered(event, report)
            case protocol.Interrupted():
                self._on_interrupted(event, report, now)

    def _remember_response(self, response_id: str, report: TurnReport) -> None:
        self._by_response[response_id] = report
        while len(self._by_response) > _REMEMBERED_TURNS:
            del self._by_response[next(iter(self._by_response))]

    @property
    def _newest_answered(self) -> TurnReport | None:
        return next(reversed(self._by_response.values()), None)

    def _on_unanswered(
        self, event: protocol.Resumed | protocol.SpeechIgnored, report: TurnReport | None
    ) -> None:
        """What spoke over the answer of ``report`` is not answered itself."""
        current = self.reports[-1] if self.reports else report
        if current is None or current is report:
            return
        current.resumed, current.goes_on = event, report
        current.heard = current.heard or event.text
        if self._unanswered is current:
            self._unanswered = None
        for step in (current.noticed, current.transcribed, current.settled):
            step.set()

    def _on_interrupted(self, event: protocol.Interrupted, report: TurnReport, now: float) -> None:
        cut_s = self.playout.interrupt(event.response_id, now)
        report.interrupted = True
        report.answer, report.incomplete = event.spoken_text, False
        current = self.reports[-1] if self.reports else report
        if current is report:
            if event.reason in _SPOKEN:
                report.cut_itself = True
                report.answered_again.clear()
            return
        if current.resumed is not None:
            current.resumed = current.goes_on = None
            current.settled.clear()
        is_over = cut_s == 0 and report.audio_ms is not None
        if self.playout.played_ms(event.response_id) > 0 and not is_over:
            current.barge_in, current.in_gap = True, cut_s == 0
            current.silenced_s = self.playout.last_heard_s

    def _on_played(self, heard: Heard) -> None:
        report = self.answered_by(heard.response_id)
        if report.answered_s is None:
            report.answered_s = heard.at_s
            report.speaking.set()
        if self._on_heard is not None:
            self._on_heard(heard)
