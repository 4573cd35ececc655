"""``parley say``: speak audio files to the agent in real time."""

from __future__ import annotations

import argparse
import asyncio
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from parley_client.cli.arguments import (
    add_events,
    add_pacing,
    add_servers,
    add_session,
    add_verbose,
    check_output,
    count,
    open_call,
    tool_table,
)
from parley_client.cli.conversation import DEFAULT_TURN_TIMEOUT_S, ScriptedConversation
from parley_client.cli.output import print_reports, print_slowness
from parley_client.cli.script import Script, load_script, script_of_files
from parley_client.cli.view import CallView
from parley_client.errors import ClientError, UsageError
from parley_client.waterfall.events import EventRecorder

EXAMPLES = """\
  parley say tests/data/open_conversation/02-weather.wav
                                   one turn, and the agent's answer
  parley say question.wav stop.wav --barge-in-after 1500
                                   the second file speaks over the answer to the first
  parley say question.wav --no-demo-tools --system-prompt "You are Bob of Bob's tea shop." --out call.wav
                                   another prompt; both sides in a WAV file"""
HELP = "speak audio files to the agent, at the pace of a person"


async def play(
    args: argparse.Namespace,
    console: Console,
    script: Script,
    out: Path | None,
    *,
    slow_ms: float | None = None,
) -> int:
    """Hold the conversation, print its latencies and write the recording.

    Args:
        args: the command's arguments.
        console: where to print.
        script: what is said.
        out: the recording; None: none.
        slow_ms: a median latency (milliseconds) above which the machine is called slow; None: it never is.

    Returns:
        The exit status: 1 if a turn has a problem.

    Raises:
        AudioFileError: ``out`` cannot be written; noticed before the call.
        ParleyError: the call could not be opened or broke.
    """
    check_output(out)
    view = CallView(console)
    tools = tool_table(args, view.show_tool_answer)
    # The prompt of a script is for the server's own agent.
    prompt = args.system_prompt or (None if args.agent else script.system_prompt)
    async with AsyncExitStack() as stack:
        # Before the call: a file that cannot be written is noticed at once.
        recorder = stack.enter_context(EventRecorder(args.events)) if args.events else None
        call = await stack.enter_async_context(open_call(args, tools, system_prompt=prompt))
        conversation = ScriptedConversation(
            call,
            view,
            chunk_ms=args.chunk_ms,
            turn_timeout_s=args.turn_timeout,
            record=out is not None,
            on_event=partial(recorder.record, call.id) if recorder else lambda _: None,
        )
        view.use_playback(conversation.tracker.playout.played_ms)
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
        if recorder and closed:
            recorder.record(call.id, closed)
    if closed is None:
        raise ClientError("the server did not confirm the end of the call")
    print_reports(console, reports, explain=args.verbose)
    late_ms = 1000 * conversation.microphone.worst_late_s
    if late_ms > args.chunk_ms:
        console.print(f"[yellow]This machine was busy: a piece of audio left {late_ms:.0f} ms late.[/]")
    if slow_ms is not None:
        print_slowness(console, reports, slow_ms)
    if gaps := conversation.tracker.playout.underruns:
        often = "once" if gaps == 1 else f"{gaps} times"
        console.print(f"[yellow]The agent's audio stopped {often} in the middle of an answer.[/]")
    return 1 if any(report.problem for report in reports) else 0


def write_recording(conversation: ScriptedConversation, out: Path, console: Console) -> None:
    """Write the call as heard."""
    if conversation.recording is not None:
        conversation.recording.write(out)
        console.print(f"The call as heard, you left and the agent right: [bold]{escape(str(out))}[/]")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    parser.add_argument(
        "files", nargs="*", type=Path, metavar="FILE", help="WAV, FLAC, OGG or MP3; one per turn"
    )
    parser.add_argument(
        "--script", type=Path, metavar="FILE.toml", help="a conversation script instead of files"
    )
    parser.add_argument(
        "--barge-in-after",
        type=count,
        metavar="MS",
        help="every further file speaks over the answer, this long after it began to be heard",
    )
    parser.add_argument(
        "--out", type=Path, metavar="CALL.wav", help="write the call: you left, the agent right"
    )
    add_events(parser)
    add_verbose(parser)
    add_pacing(parser, DEFAULT_TURN_TIMEOUT_S)
    add_servers(parser)
    add_session(parser)


async def run(args: argparse.Namespace, console: Console) -> int:
    """Speak the files.

    Raises:
        UsageError: there is nothing to speak, or two things.
        ParleyError: a file cannot be read, or the call failed.
    """
    if bool(args.files) == bool(args.script):
        raise UsageError("give either audio files or --script FILE.toml")
    if args.script and args.barge_in_after is not None:
        raise UsageError("--barge-in-after is for files; a script has its own")
    script = load_script(args.script) if args.script else script_of_files(args.files, args.barge_in_after)
    return await play(args, console, script, args.out)
