"""A call as it happens, on a terminal or as plain lines."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self, TypeAlias

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from parley import protocol
from parley_client.cli.output import OutputConsole, print_hanging, printable
from parley_client.cli.script import ScriptTurn
from parley_client.events import AgentAudio, CallEvent, Reconnected, Reconnecting, format_sources

_TOLERANCE_MS = 50.0

_PLAIN_WIDTH = 120
_REMEMBERED_TOOLS = 64
_NOTICED_WAIT_MS = 500
"""Waits for more speech that are shown; shorter ones precede every answer."""


class AnswerView:
    """The newest answer, from its first text or audio on."""

    def __init__(self) -> None:
        self.played_ms: Callable[[str], float] | None = None
        """How much of a response has been heard (milliseconds); None: all that came."""
        self.is_read = False
        """Whether the user reads it: all that came."""
        self.unshown = ""
        """Text that no line shows yet."""
        self.began_s: float | None = None
        """When the first audio behind its beginning came; before that, when its beginning came (seconds)."""
        self._sounds = False
        self._response = ""
        self._text = ""
        self._marks: list[tuple[float, str]] = []  # where words begin (milliseconds), and they
        self._sent_ms = 0.0
        self._is_over = False
        self._failed = False

    def add(self, event: protocol.ResponseText | AgentAudio, at_s: float) -> None:
        """Add a piece of an answer that comes now; one of another answer replaces what is there."""
        if event.response_id != self._response:
            self._forget(event.response_id)
        if isinstance(event, AgentAudio):
            if self.unshown.strip() and not self._sounds:
                self.began_s, self._sounds = at_s, True
            self._sent_ms = max(self._sent_ms, event.offset_ms + event.duration_ms)
            if event.text:
                self._marks.append((event.offset_ms, event.text))
        else:
            if not self.unshown.strip():
                self.began_s, self._sounds = at_s, False
            self._text += event.text
            self.unshown += event.text

    def on_error(self) -> None:
        """Something failed, perhaps the synthesizer."""
        self._failed = True

    def interrupt(self) -> None:
        """Drop the answer: the event of the interruption has what was heard."""
        self._forget("")
        self.unshown = ""

    def complete(self, event: protocol.ResponseDone) -> str | None:
        """End the answer.

        Returns:
            What will have been heard, if that is not everything; None: everything, or it has no words.
        """
        self._is_over = True
        if self.is_read or event.response_id != self._response or not self._text.strip():
            return None
        if not event.audio_ms:
            return ""
        return self._unless_whole(self._words(float("inf"))) if self._failed else None

    def leave(self) -> str | None:
        """Leave the call before its end; returns as :meth:`complete`."""
        if self.is_read or not self._text.strip():
            return None
        played_ms = self._sent_ms if self.played_ms is None else self.played_ms(self._response)
        if self._is_over and played_ms >= self._sent_ms - _TOLERANCE_MS:
            return None
        return self._unless_whole(self._words(played_ms))

    def _forget(self, response_id: str) -> None:
        self._response, self._text = response_id, ""
        self._marks, self._sent_ms = [], 0.0
        self._is_over = self._failed = False

    def _words(self, played_ms: float) -> str:
        """The words that begin in what was played."""
        return " ".join(text for begin_ms, text in self._marks if begin_ms < played_ms)

    def _unless_whole(self, words: str) -> str | None:
        return None if _letters(words) == _letters(self._text) else words


def _letters(text: str) -> str:
    """The text without spacing and punctuation."""
    return "".join(letter for letter in text if letter.isalnum())


Remarkable: TypeAlias = (
    protocol.TurnDecision
    | protocol.KnowledgeUsed
    | protocol.Paused
    | protocol.Resumed
    | protocol.SpeechIgnored
    | protocol.Interrupted
    | protocol.ErrorEvent
    | protocol.Closed
)


def format_remark(event: Remarkable) -> str:
    """The text of a line about the course of the call."""
    match event:
        case protocol.TurnDecision():
            words = f" “{event.cue_words}”" if event.cue_words else ""
            return f"[dim]waits for more: {event.reason}{escape(words)}[/]"
        case protocol.KnowledgeUsed() | protocol.Paused():
            what = format_sources(event) if isinstance(event, protocol.KnowledgeUsed) else "paused"
            return f"[dim]{escape(what)}[/]"
        case protocol.Resumed() | protocol.SpeechIgnored():
            what = "goes on" if isinstance(event, protocol.Resumed) else "not answered"
            return f"[dim]{what} ({escape(_why_resumed(event))})[/]"
        case protocol.Interrupted():
            heard = escape(event.spoken_text) or "nothing"
            return f"[yellow]interrupted ({event.reason}); heard of it:[/] {heard}"
        case protocol.ErrorEvent():
            again = ", may pass" if event.retryable else ""
            return f"{escape(event.message)} [dim]({event.code}{again})[/]"
        case protocol.Closed():
            return _format_end(event)


def _format_end(event: protocol.Closed) -> str:
    if event.transfer is None:
        why = f": {escape(event.agent_reason)}" if event.agent_reason else ""
        return f"[dim]call closed: {event.reason}{why}[/]"
    number = f" ({escape(event.transfer.to)})" if event.transfer.to else ""
    return f"the call goes to {escape(event.transfer.name)}{number}: {escape(event.transfer.summary)}"


def format_move(event: Reconnecting | Reconnected) -> str:
    """The text of a line about a call that changes its server."""
    if isinstance(event, Reconnecting):
        return f"leaves its server: {event.reason.replace('_', ' ')}"
    return f"goes on after {event.gap_ms:.0f} ms without a server"


def _why_resumed(event: protocol.Resumed | protocol.SpeechIgnored) -> str:
    if event.reason == "backchannel" and event.text:
        return event.text
    why = event.reason.replace("_", " ")
    return f"{why}: {event.text}" if event.text else why


def format_tool(event: protocol.ToolRequest | protocol.ToolRun) -> str:
    """A tool call with its arguments, and where it was run if not here."""
    pairs = (f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in event.arguments.items())
    call = escape(f"{event.name}({', '.join(pairs)})")
    if isinstance(event, protocol.ToolRequest):
        return call
    failed = "failed " if event.is_error else ""
    return f"{call} [dim]({failed}on the server, {event.duration_ms:.0f} ms)[/]"


def make_console() -> Console:
    """The console of the command; without a terminal its lines are long and plain."""
    console = OutputConsole(highlight=False)
    return console if console.is_terminal else OutputConsole(highlight=False, width=_PLAIN_WIDTH)


class CallView:
    """Shows events: finished lines stay, what is being said or typed is updated in place.

    Without a terminal there is nothing to update: only finished lines are printed. On leaving, what has
    no end yet is printed as it is; of an answer, what was heard. The time of a line is that of its event; an
    answer's is that of its beginning, so that it may be earlier than that of the line before.

    Args:
        console: where to show them.
        is_text: the agent does not speak: its answers are read.
    """

    def __init__(self, console: Console, *, is_text: bool = False) -> None:
        self._console = console
        self._live = (
            Live(console=console, refresh_per_second=12, transient=True) if console.is_terminal else None
        )
        self._state = "listening"
        self._partial = ""
        self._answer = AnswerView()
        self._answer.is_read = is_text
        self._typing = ""
        self._tools: OrderedDict[str, str] = OrderedDict()
        self._at_s = 0.0

    @property
    def is_live(self) -> bool:
        """Whether lines are updated in place."""
        return self._live is not None

    def __enter__(self) -> Self:
        self._context: AbstractContextManager[Any] = self._live or nullcontext()
        self._context.__enter__()
        return self

    def __exit__(self, *problem: object) -> None:
        self._context.__exit__(None, None, None)
        if self._partial:
            self._line("bold cyan", "you", f"{escape(self._partial)}…")
            self._partial = ""
        self._show_cut(self._answer.leave())
        self._flush_answer()

    def use_playback(self, played_ms: Callable[[str], float]) -> None:
        """Use this for how much of a response has been heard (milliseconds)."""
        self._answer.played_ms = played_ms

    def begin_turn(self, turn: ScriptTurn, at_s: float) -> None:
        """The user begins to speak."""
        self._at_s = at_s
        over = " [yellow](speaks over the agent)[/]" if turn.barge_in_ms is not None else ""
        self._line("dim", "", f"[dim]{escape(_of_turn(turn))}[/]{over}")

    def show_typed(self, line: str, at_s: float) -> None:
        """The user has typed a line."""
        self._at_s = at_s
        self._line("bold cyan", "you", f"{escape(printable(line.expandtabs(1)))} [dim](typed)[/]")

    def show_typing(self, text: str) -> None:
        """The user is typing a line."""
        self._typing = text
        self._refresh()

    def show_problem(self, message: str, code: str, at_s: float) -> None:
        """Show why a typed line was refused."""
        self._at_s = at_s
        self._line("bold red", "error", f"{escape(message)} [dim]({code})[/]")

    def show(self, event: CallEvent, at_s: float) -> None:
        """An event arrived."""
        self._at_s = at_s
        match event:
            case protocol.Transcript(is_final=False):
                self._partial = event.text
            case protocol.Transcript():
                self._show_heard(event)
            case protocol.AgentState():
                self._state = event.state
            case protocol.ResponseText() | AgentAudio():
                self._answer.add(event, at_s)
            case (
                protocol.ToolRequest()
                | protocol.ToolRun()
                | protocol.ToolCancelled()
                | protocol.ToolProgress()
            ):
                self._show_tool(event)
            case protocol.Paused() | protocol.Resumed() | protocol.Interrupted():
                self._show_playing(event)
            case protocol.ResponseDone() | protocol.TurnMetrics():
                self._show_end(event)
            case protocol.ErrorEvent():
                self._answer.on_error()
                self._line("bold red", "error", format_remark(event))
            case _:
                self._show_course(event)
        self._refresh()

    def _show_course(self, event: CallEvent) -> None:
        match event:
            case Reconnecting() | Reconnected():
                self._line("yellow", "call", format_move(event))
            case protocol.StepChanged():
                self._line("dim", "step", escape(event.step))
            case protocol.DataCollected():
                self._line("dim", "data", escape(f"{event.field}: {event.value or 'taken back'}"))
            case protocol.TurnDecision() if event.decision != "wait" or event.needed_ms <= _NOTICED_WAIT_MS:
                pass
            case (
                protocol.TurnDecision()
                | protocol.KnowledgeUsed()
                | protocol.SpeechIgnored()
                | protocol.Closed()
            ):
                self._line("dim", "", format_remark(event))

    def _show_playing(self, event: protocol.Paused | protocol.Resumed | protocol.Interrupted) -> None:
        if isinstance(event, protocol.Interrupted):
            self._answer.interrupt()
        self._line("bold green", "agent", format_remark(event))

    def _show_end(self, event: protocol.ResponseDone | protocol.TurnMetrics) -> None:
        heard = self._answer.complete(event) if isinstance(event, protocol.ResponseDone) else None
        if heard == "" and self._answer.unshown.strip():
            self._flush_answer(" [yellow](not heard)[/]")
            return
        self._show_cut(heard)
        self._flush_answer()

    def _show_cut(self, heard: str | None) -> None:
        """What was heard of an answer that was not heard to its end; None: it was."""
        if heard is not None:
            self._answer.unshown = ""
            words = escape(heard) or "nothing"
            self._line("bold green", "agent", f"[yellow]cut off; heard of it:[/] {words}")

    def _show_heard(self, event: protocol.Transcript) -> None:
        self._partial = ""
        if event.text:  # a cough has none
            self._line("bold cyan", "you", f"{escape(event.text)} [dim]({event.confidence:.0%} sure)[/]")

    def _show_tool(
        self,
        event: protocol.ToolRequest | protocol.ToolRun | protocol.ToolCancelled | protocol.ToolProgress,
    ) -> None:
        if isinstance(event, protocol.ToolCancelled):
            name = self._tools.pop(event.call_id, "tool")
            self._line("magenta", "", f"[dim]{escape(name)} cancelled ({event.reason})[/]")
            return
        if isinstance(event, protocol.ToolProgress):
            said = escape(json.dumps(event.output, ensure_ascii=False))
            self._line("magenta", "", f"[dim]{escape(event.name)}: {said}[/]")
            return
        self._flush_answer()
        if isinstance(event, protocol.ToolRequest):
            self._tools[event.call_id] = event.name
            if len(self._tools) > _REMEMBERED_TOOLS:
                self._tools.popitem(last=False)
        self._line("magenta", "tool", format_tool(event))

    def show_tool_answer(self, request: protocol.ToolRequest, response: protocol.ToolResponse) -> None:
        """A tool has answered."""
        self._tools.pop(request.call_id, None)
        style = "red" if response.is_error else "dim"
        self._line(
            "magenta",
            "",
            f"[{style}]{escape(request.name)} → {escape(json.dumps(response.output, default=str))}[/]",
        )

    def _flush_answer(self, mark: str = "") -> None:
        if text := self._answer.unshown.strip():
            self._line("bold green", "agent", f"{escape(text)}{mark}", self._answer.began_s)
        self._answer.unshown = ""

    def _line(self, style: str, who: str, text: str, at_s: float | None = None) -> None:
        at_s = self._at_s if at_s is None else at_s
        print_hanging(self._console, f"[dim]{at_s:7.2f}s[/]  [{style}]{who:>6}[/]  ", text)

    def _refresh(self) -> None:
        if self._live is None:
            return
        status = Text.assemble((f"{self._at_s:7.2f}s  ", "dim"), (f"[{self._state}] ", "yellow"))
        if self._partial:
            status.append(f"you: {self._partial}…", "cyan")
        elif self._answer.unshown:
            status.append(f"agent: {self._answer.unshown.strip()}", "green")
        if self._typing:
            status.append(f"  > {self._typing}", "bold")
        self._live.update(status)


def _of_turn(turn: ScriptTurn) -> str:
    if turn.write:
        return f"keyboard: “{turn.write}”"
    if turn.press:
        return f"keys: {turn.press}"
    return f"microphone: “{turn.text}”" if turn.text else f"microphone: {turn.name}"
