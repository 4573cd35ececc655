"""Plays a script through a call and shows it: what ``say`` and ``demo`` share."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from parley_client.commands.common import check_output
from parley_client.commands.session import open_call, tool_table
from parley_client.conversation import ScriptedConversation
from parley_client.errors import ClientError
from parley_client.script import Script
from parley_client.terminal.report import print_reports
from parley_client.terminal.view import CallView


async def play(args: argparse.Namespace, console: Console, script: Script, out: Path | None) -> int:
    """Hold the conversation, print its latencies and write the recording.

    Returns:
        The exit status: 1 if a turn did not go as planned.

    Raises:
        AudioFileError: ``out`` cannot be written; noticed before the call.
        ParleyError: the call could not be opened or broke.
    """
    check_output(out)
    view = CallView(console)
    tools = tool_table(args, view.show_tool_answer)
    prompt = args.system_prompt or script.system_prompt
    async with open_call(args, tools, system_prompt=prompt) as call:
        conversation = ScriptedConversation(
            call,
            view,
            chunk_ms=args.chunk_ms,
            turn_timeout_s=args.turn_timeout,
            record=out is not None,
        )
        view.follow(conversation.tracker.playout.played_ms)
        try:
            with view:
                reports = await conversation.run(script.turns)
        except asyncio.CancelledError:  # Ctrl-C: show what there is
            print_reports(console, conversation.tracker.reports)
            raise
        finally:
            if out is not None:
                write_recording(conversation, out, console)
        closed = await call.hang_up()
    if closed is None:
        raise ClientError("the server did not confirm the end of the call")
    print_reports(console, reports, explain=args.verbose)
    late_ms = 1000 * conversation.microphone.worst_late_s
    if late_ms > args.chunk_ms:
        console.print(f"[yellow]This machine was busy: a piece of audio left {late_ms:.0f} ms late.[/]")
    if gaps := conversation.tracker.playout.underruns:
        often = "once" if gaps == 1 else f"{gaps} times"
        console.print(f"[yellow]The agent's audio stopped {often} in the middle of an answer.[/]")
    return 1 if any(report.problem for report in reports) else 0


def write_recording(conversation: ScriptedConversation, out: Path, console: Console) -> None:
    """Write the call as heard."""
    if conversation.recording is not None:
        conversation.recording.write(out)
        console.print(f"The call as heard, you left and the agent right: [bold]{escape(str(out))}[/]")
