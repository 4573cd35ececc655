"""Reads a call's events into turn reports."""

from __future__ import annotations

from collections.abc import Callable

from parley import protocol
from parley_client.audio.playout import Heard, PlayoutClock
from parley_client.events import AgentAudio, CallEvent
from parley_client.turns import TurnReport

_REMEMBERED_TURNS = 64


class TurnTracker:
    """Knows which of the user's turns each event belongs to.

    The server counts turns by what it heard; the script by what was said. A server turn belongs
    to the last scripted turn whose final transcript had come when the server turn first showed.

    Args:
        on_heard: Told about every stretch of the agent's audio that is heard.
    """

    def __init__(self, on_heard: Callable[[Heard], None] | None = None) -> None:
        self._on_heard = on_heard
        self.playout = PlayoutClock(self._note_heard)
        self.reports: list[TurnReport] = []
        self.began_s = 0.0
        """When the microphone's first sample was spoken: the server counts audio from there."""
        self._by_turn: dict[int, TurnReport] = {}
        self._by_response: dict[str, TurnReport] = {}

    def begin(self, report: TurnReport) -> None:
        """The user begins to speak."""
        self.reports.append(report)

    def note(self, event: CallEvent, now: float) -> None:
        """An event arrives at ``now`` (seconds on the microphone's clock)."""
        self.playout.advance(now)
        match event:
            case protocol.SpeechStarted() if self.reports:
                self.reports[-1].noticed.set()
            case protocol.SpeechStopped() if self.reports:
                self.reports[-1].detected_s = self.began_s + event.detected_at_ms / 1000
            case protocol.Transcript(is_final=True) if self.reports:
                self._note_transcript(self.reports[-1], event.text, now)
            case protocol.ResponseText():
                self._report_of(event.turn).answer += event.text
            case protocol.ToolRequest():
                self._report_of(event.turn).tools.append(event)
            case AgentAudio():
                self._remember_response(event.response_id, self._report_of(event.turn))
                self.playout.push(event, now)
            case protocol.Interrupted():
                self._note_interrupted(event, now)
            case protocol.TurnMetrics():
                report = self._report_of(event.turn)
                report.metrics = event
                report.settled.set()
            case _:
                pass

    def _note_transcript(self, report: TurnReport, text: str, now: float) -> None:
        report.transcribed_s = now
        report.heard = f"{report.heard} {text}".strip()
        report.noticed.set()
        report.transcribed.set()

    def _report_of(self, turn: int) -> TurnReport:
        if turn not in self._by_turn:
            self._by_turn[turn] = self._newest_transcribed()
            self._by_turn[turn].answer = ""
            self._by_turn[turn].settled.clear()
            if len(self._by_turn) > _REMEMBERED_TURNS:
                del self._by_turn[next(iter(self._by_turn))]
        return self._by_turn[turn]

    def _newest_transcribed(self) -> TurnReport:
        for report in reversed(self.reports[-2:]):
            if report.transcribed_s is not None:
                return report
        # The agent speaks first, or hears something that nobody said.
        return self.reports[-1] if self.reports else TurnReport("")

    def _remember_response(self, response_id: str, report: TurnReport) -> None:
        self._by_response[response_id] = report
        while len(self._by_response) > _REMEMBERED_TURNS:
            del self._by_response[next(iter(self._by_response))]

    def _note_interrupted(self, event: protocol.Interrupted, now: float) -> None:
        playing = self.playout.playing(now)
        self.playout.interrupt(event.response_id, now)
        report = self._report_of(event.turn)
        report.interrupted = True
        report.answer = event.spoken_text
        current = self.reports[-1] if self.reports else report
        if current is not report and playing == event.response_id:
            current.barge_in = True
            current.silenced_s = now

    def _note_heard(self, heard: Heard) -> None:
        report = self._by_response.get(heard.response_id)
        if report is not None and report.answered_s is None:
            report.answered_s = heard.at_s
            report.speaking.set()
        if self._on_heard is not None:
            self._on_heard(heard)
