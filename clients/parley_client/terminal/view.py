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
from parley_client.events import AgentAudio, CallEvent
from parley_client.script import ScriptTurn
from parley_client.terminal.answer import AnswerView
from parley_client.terminal.output import OutputConsole, print_hanging

Remarkable: TypeAlias = (
    protocol.TurnDecision
    | protocol.Paused
    | protocol.Resumed
    | protocol.SpeechIgnored
    | protocol.Interrupted
    | protocol.ErrorEvent
    | protocol.Closed
)


def remark(event: Remarkable) -> str:
    """What a line about the course of the call says."""
    match event:
        case protocol.TurnDecision():
            words = f" “{event.cue_words}”" if event.cue_words else ""
            return f"[dim]waits for more: {event.reason}{escape(words)}[/]"
        case protocol.Paused():
            return "[dim]paused[/]"
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
            return f"[dim]call closed: {event.reason}[/]"


def _why_resumed(event: protocol.Resumed | protocol.SpeechIgnored) -> str:
    if event.reason == "backchannel" and event.text:
        return event.text
    why = event.reason.replace("_", " ")
    return f"{why}: {event.text}" if event.text else why


def of_tool(event: protocol.ToolRequest | protocol.ToolRun) -> str:
    """A tool with its arguments, and where it was run if not here."""
    pairs = (f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in event.arguments.items())
    call = escape(f"{event.name}({', '.join(pairs)})")
    if isinstance(event, protocol.ToolRequest):
        return call
    failed = "failed " if event.is_error else ""
    return f"{call} [dim]({failed}on the server, {event.duration_ms:.0f} ms)[/]"


_PLAIN_WIDTH = 120
_REMEMBERED_TOOLS = 64


def make_console() -> Console:
    """The console of the command; without a terminal its lines are long and plain."""
    console = OutputConsole(highlight=False)
    return console if console.is_terminal else OutputConsole(highlight=False, width=_PLAIN_WIDTH)


_NOTICED_WAIT_MS = 500
"""Silence that is shown to be waited for; less of it goes before every answer."""


class CallView:
    """Shows events: finished lines stay, what is being said or typed is updated in place.

    Without a terminal there is nothing to update: only finished lines are printed. On leaving, what has
    no end yet is printed as it is; of an answer, what was heard.

    Args:
        console: Where to print.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = (
            Live(console=console, refresh_per_second=12, transient=True) if console.is_terminal else None
        )
        self._state = "listening"
        self._partial = ""
        self._answer = AnswerView()
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

    def follow(self, played_ms: Callable[[str], float]) -> None:
        """Ask this for how much of a response has been heard (milliseconds)."""
        self._answer.played_ms = played_ms

    def begin_turn(self, turn: ScriptTurn, at_s: float) -> None:
        """The user begins to speak."""
        self._at_s = at_s
        over = " [yellow](speaks over the agent)[/]" if turn.barge_in_ms is not None else ""
        self._line("dim", "", f"[dim]{escape(_of_turn(turn))}[/]{over}")

    def show_typed(self, line: str, at_s: float) -> None:
        """The user has typed a line."""
        self._at_s = at_s
        self._line("bold cyan", "you", f"{escape(line)} [dim](typed)[/]")

    def show_typing(self, text: str) -> None:
        """The user is typing a line."""
        self._typing = text
        self._refresh()

    def show_problem(self, message: str, code: str, at_s: float) -> None:
        """Something that the user wanted is not possible."""
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
                self._answer.note(event)
            case protocol.ToolRequest() | protocol.ToolRun() | protocol.ToolCancelled():
                self._show_tool(event)
            case protocol.Paused() | protocol.Resumed() | protocol.Interrupted():
                self._show_playing(event)
            case protocol.ResponseDone() | protocol.TurnMetrics():
                self._show_end(event)
            case protocol.TurnDecision() | protocol.SpeechIgnored() | protocol.Closed():
                self._show_course(event)
            case protocol.ErrorEvent():
                self._answer.note_error()
                self._line("bold red", "error", remark(event))
        self._refresh()

    def _show_course(self, event: protocol.TurnDecision | protocol.SpeechIgnored | protocol.Closed) -> None:
        if isinstance(event, protocol.TurnDecision) and (
            event.decision != "wait" or event.needed_ms <= _NOTICED_WAIT_MS
        ):
            return
        self._line("dim", "", remark(event))

    def _show_playing(self, event: protocol.Paused | protocol.Resumed | protocol.Interrupted) -> None:
        if isinstance(event, protocol.Interrupted):
            self._answer.interrupt()
        self._line("bold green", "agent", remark(event))

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

    def _show_tool(self, event: protocol.ToolRequest | protocol.ToolRun | protocol.ToolCancelled) -> None:
        if isinstance(event, protocol.ToolCancelled):
            name = self._tools.pop(event.call_id, "tool")
            self._line("magenta", "", f"[dim]{escape(name)} cancelled ({event.reason})[/]")
            return
        self._flush_answer()
        if isinstance(event, protocol.ToolRequest):
            self._tools[event.call_id] = event.name
            if len(self._tools) > _REMEMBERED_TOOLS:
                self._tools.popitem(last=False)
        self._line("magenta", "tool", of_tool(event))

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
            self._line("bold green", "agent", f"{escape(text)}{mark}")
        self._answer.unshown = ""

    def _line(self, style: str, who: str, text: str) -> None:
        print_hanging(self._console, f"[dim]{self._at_s:7.2f}s[/]  [{style}]{who:>6}[/]  ", text)

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
