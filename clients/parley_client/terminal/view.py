"""A call as it happens, on a terminal or as plain lines."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from parley import protocol
from parley_client.events import CallEvent
from parley_client.script import ScriptTurn
from parley_client.terminal.output import OutputConsole, print_hanging

_PLAIN_WIDTH = 120


def make_console() -> Console:
    """The console of the command; without a terminal its lines are long and plain."""
    console = OutputConsole(highlight=False)
    return console if console.is_terminal else OutputConsole(highlight=False, width=_PLAIN_WIDTH)


class CallView:
    """Shows events: finished lines stay, what is being said is updated in place.

    Without a terminal there is nothing to update: only finished lines are printed.

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
        self._answer = ""
        self._at_s = 0.0

    def __enter__(self) -> Self:
        self._context: AbstractContextManager[Any] = self._live or nullcontext()
        self._context.__enter__()
        return self

    def __exit__(self, *problem: object) -> None:
        self._context.__exit__(None, None, None)

    def begin_turn(self, turn: ScriptTurn, at_s: float) -> None:
        """The user begins to speak."""
        self._at_s = at_s
        said = f"“{turn.text}”" if turn.text else turn.name
        over = " [yellow](speaks over the agent)[/]" if turn.barge_in_ms is not None else ""
        self._line("dim", "", f"[dim]microphone: {escape(said)}[/]{over}")

    def show(self, event: CallEvent, at_s: float) -> None:
        """An event arrived."""
        self._at_s = at_s
        match event:
            case protocol.Transcript(is_final=False):
                self._partial = event.text
            case protocol.Transcript():
                self._partial = ""
                self._line("bold cyan", "you", f"{escape(event.text)} [dim]({event.confidence:.0%} sure)[/]")
            case protocol.AgentState():
                self._state = event.state
            case protocol.ResponseText():
                self._answer += event.text
            case protocol.ToolRequest():
                self._flush_answer()
                self._line("magenta", "tool", escape(f"{event.name}({_arguments(event.arguments)})"))
            case protocol.Interrupted():
                self._answer = ""
                heard = escape(event.spoken_text) or "nothing"
                self._line("bold green", "agent", f"[yellow]interrupted; heard of it:[/] {heard}")
            case protocol.ResponseDone() | protocol.TurnMetrics():
                self._flush_answer()
            case protocol.TurnDecision(decision="wait") | protocol.ErrorEvent() | protocol.Closed():
                self._line(*_remark(event))
            case _:
                pass
        self._refresh()

    def show_tool_answer(self, request: protocol.ToolRequest, response: protocol.ToolResponse) -> None:
        """A tool has answered."""
        style = "red" if response.is_error else "dim"
        self._line(
            "magenta",
            "",
            f"[{style}]{escape(request.name)} → {escape(json.dumps(response.output, default=str))}[/]",
        )

    def _flush_answer(self) -> None:
        if self._answer.strip():
            self._line("bold green", "agent", escape(self._answer.strip()))
        self._answer = ""

    def _line(self, style: str, who: str, text: str) -> None:
        print_hanging(self._console, f"[dim]{self._at_s:7.2f}s[/]  [{style}]{who:>6}[/]  ", text)

    def _refresh(self) -> None:
        if self._live is None:
            return
        status = Text.assemble((f"{self._at_s:7.2f}s  ", "dim"), (f"[{self._state}] ", "yellow"))
        if self._partial:
            status.append(f"you: {self._partial}…", "cyan")
        elif self._answer:
            status.append(f"agent: {self._answer.strip()}", "green")
        self._live.update(status)


def _remark(event: protocol.TurnDecision | protocol.ErrorEvent | protocol.Closed) -> tuple[str, str, str]:
    """The style, the speaker and the text of a line about the call itself."""
    if isinstance(event, protocol.TurnDecision):
        words = f" “{event.cue_words}”" if event.cue_words else ""
        return "dim", "", f"[dim]waits for more: {event.reason}{escape(words)}[/]"
    if isinstance(event, protocol.Closed):
        return "dim", "", f"[dim]call closed: {event.reason}[/]"
    again = ", may pass" if event.retryable else ""
    return "bold red", "error", f"{escape(event.message)} [dim]({event.code}{again})[/]"


def _arguments(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in arguments.items())
