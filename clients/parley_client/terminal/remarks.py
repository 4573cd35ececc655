"""Events as words, with rich's markup."""

from __future__ import annotations

import json
from typing import TypeAlias

from rich.markup import escape

from parley import protocol

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
