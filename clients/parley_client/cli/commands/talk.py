"""``parley talk``: talk to the agent with this machine's microphone."""

from __future__ import annotations

import argparse
import asyncio
import re
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from rich.console import Console

from parley import protocol
from parley.errors import InvalidMessageError, OverloadedError
from parley.timeouts import first_to_end, is_set_within
from parley_client.audio.device import AudioDevice, PlaybackBuffer, load_sounddevice
from parley_client.audio.files import Pcm
from parley_client.call import Call
from parley_client.cli.arguments import add_servers, add_session, open_call, tool_table
from parley_client.cli.conversation import PlaybackMarks
from parley_client.cli.keyboard import can_be_typed_at, piped_lines, typed_lines
from parley_client.cli.turns import TurnReport, TurnTracker
from parley_client.cli.view import CallView
from parley_client.errors import ClientError
from parley_client.events import AgentAudio, CallEvent
from parley_client.options import Deadlines

TYPED_HELP = "a line of text, /say TEXT, /dtmf KEYS, /mute or /unmute"

EXAMPLES = """\
  parley talk                      with the microphone, against 127.0.0.1:8001
  parley talk --server 10.0.0.5:8001 --system-prompt "You sell tea."
                                   another server, and another prompt
  parley talk --text               type, and read the answers, for example over SSH
  echo "What time is it?" | parley talk --text --agent restaurant
                                   each line when the one before is answered
  parley talk --tools my_tools.py
                                   with functions of yours (docs/client.md)"""
HELP = "talk to the agent with the microphone (in the checkout: make talk), or type"
_POLL_S = 0.02
_SILENT = re.compile(r"/(?:mute|unmute|dtmf +#+)")
"""Commands that the agent does not answer: ``#`` alone ends no keys."""
_ANSWER_S = 120.0
"""Longest wait for an answer to what was piped in."""
_ALIVE_S = 20.0
"""The server ends a call of which nothing comes for a minute."""
_CLOSE_S = 2.0
_WANTED_ENDS = ("ended", "hangup", "agent_ended", "transferred", "silence")


def send_typed_line(line: str, call: Call, view: CallView, at_s: float) -> bool:
    """Send a typed line, a command if it begins with ``/``, and show it or why it was refused.

    Returns:
        Whether the agent has something to say now.
    """
    line = line.strip()
    if not line:
        return False
    try:
        _send_line(line, call)
    except (InvalidMessageError, OverloadedError) as error:
        view.show_problem(str(error), error.code, at_s)
        return False
    view.show_typed(line, at_s)
    return _SILENT.fullmatch(line) is None


def _send_line(line: str, call: Call) -> None:
    if not line.startswith("/"):
        call.send_text(line)
        return
    command, _, argument = line[1:].partition(" ")
    argument = argument.strip()
    with_argument: dict[str, Callable[[str], None]] = {"say": call.say, "dtmf": call.send_dtmf}
    without: dict[str, Callable[[], None]] = {"mute": call.mute, "unmute": call.unmute}
    if command in with_argument:
        with_argument[command](argument)
    elif command in without and not argument:
        without[command]()
    else:
        raise InvalidMessageError(f"{line!r} is not known; type {TYPED_HELP}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    parser.epilog = f"Typed lines are sent while you talk: {TYPED_HELP}.\nCtrl-C or Ctrl-D hangs up."
    parser.add_argument(
        "--text",
        action="store_true",
        help="without microphone and loudspeaker: lines of standard input are sent, answers are printed",
    )
    add_servers(parser)
    add_session(parser)


async def run(args: argparse.Namespace, console: Console) -> int:
    """Talk until the agent closes the call, or Ctrl-C or Ctrl-D is pressed.

    Returns:
        The exit status: 1 if the server closed the call for a reason of its own.

    Raises:
        AudioDeviceError: no usable microphone or loudspeaker.
        ParleyError: the call could not be opened or broke.
    """
    if not args.text:
        load_sounddevice()
    view = CallView(console, is_text=args.text)
    options: dict[str, Any] = {"output": "text"} if args.text else {}
    options["deadlines"] = Deadlines(connect_s=args.timeout, close_s=_CLOSE_S)
    async with open_call(args, tool_table(args, view.show_tool_answer), **options) as call:
        with view:
            talk = _Talk(call, view, _ALIVE_S) if args.text else _SpokenTalk(call, view, args.output_rate)
            ended = await talk.hold(console)
        closed = await call.hang_up()
    return 0 if ended or (closed is not None and closed.reason in _WANTED_ENDS) else 1


class _Talk:
    """An open call of which both sides write."""

    def __init__(self, call: Call, view: CallView, tick_s: float) -> None:
        self._call = call
        self._view = view
        self._tick_s = tick_s
        self._tracker = TurnTracker()
        self._began_s = time.perf_counter()

    async def hold(self, console: Console) -> bool:
        """Talk until the call is over; returns whether the user has ended it.

        Raises:
            ParleyError: the call or a device broke, or an answer does not come.
        """
        works = self._listen(), self._take_part(console), self._keep_ticking()
        try:
            async with first_to_end(*works) as (listening, taking_part, _):
                await (taking_part if taking_part.done() else listening)
                return taking_part.done()
        except asyncio.CancelledError:  # Ctrl-C is how a person hangs up
            return True

    async def _take_part(self, console: Console) -> None:
        """Return when the user hangs up."""
        if can_be_typed_at():
            console.print(f"Type: {TYPED_HELP}. Ctrl-D hangs up.", soft_wrap=True)
            await self._type()
            return
        if self._call.greets:
            await is_set_within(self._tracker.greeted, _ANSWER_S)
        async for line in piped_lines():
            self._on_line(line)
            await self._until_answered()

    async def _type(self) -> None:
        """Send what is typed, up to Ctrl-D; without a terminal never return."""
        ended = asyncio.Event()
        with typed_lines(self._on_line, ended.set, self._view.show_typing if self._view.is_live else None):
            await ended.wait()

    async def _until_answered(self) -> None:
        reports = self._tracker.reports
        if reports and not await is_set_within(reports[-1].settled, _ANSWER_S):
            raise ClientError(f"no complete answer within {_ANSWER_S:g} s")

    @property
    def _at_s(self) -> float:
        return time.perf_counter() - self._began_s

    def _on_line(self, line: str) -> None:
        with suppress(ClientError):  # the call has ended; its reader gets the reason
            if send_typed_line(line, self._call, self._view, self._at_s):
                self._tracker.enter(TurnReport(line), self._at_s)
                del self._tracker.reports[:-1]

    async def _listen(self) -> None:
        async for event in self._call:
            self._on_event(event)
            self._view.show(event, self._at_s)

    def _on_event(self, event: CallEvent) -> None:
        self._tracker.on_event(event, self._at_s)
        is_refusal = isinstance(event, protocol.ErrorEvent) and event.code == InvalidMessageError.code
        if is_refusal and self._tracker.reports:  # what was sent last becomes no turn
            self._tracker.reports[-1].settled.set()

    async def _keep_ticking(self) -> None:
        while True:
            await asyncio.sleep(self._tick_s)
            self._tick()

    def _tick(self) -> None:
        with suppress(ClientError, OverloadedError):
            self._call.mute()


class _SpokenTalk(_Talk):
    """One with microphone and loudspeaker."""

    def __init__(self, call: Call, view: CallView, sample_rate: int) -> None:
        super().__init__(call, view, _POLL_S)
        self._rate = sample_rate
        self._speaker = PlaybackBuffer(sample_rate)
        self._marks = PlaybackMarks(call, self._speaker.played_ms)
        view.use_playback(self._speaker.played_ms)

    async def _take_part(self, console: Console) -> None:
        with AudioDevice(self._speaker, self._rate, partial(_offer, self._call)):
            console.print(_welcome(), soft_wrap=True)
            await self._type()

    def _on_event(self, event: CallEvent) -> None:
        _play(event, self._speaker)
        self._tick()

    def _tick(self) -> None:
        self._marks.update(self._speaker.playing(), time.perf_counter())


def _welcome() -> str:
    typed = f" You may also type: {TYPED_HELP}." if can_be_typed_at() else ""
    return f"Speak. Use headphones, or the agent hears itself. Ctrl-C hangs up.{typed}"


def _offer(call: Call, block: Pcm) -> None:
    # The device's last blocks come when the call has been hung up; the reader gets the reason of a loss.
    with suppress(ClientError):
        call.offer_audio(block)


def _play(event: CallEvent, speaker: PlaybackBuffer) -> None:
    match event:
        case AgentAudio():
            speaker.push(event)
        case protocol.Paused():
            speaker.pause(event.response_id)
        case protocol.Resumed():
            speaker.resume(event.response_id)
        case protocol.Interrupted():
            speaker.interrupt(event.response_id)
        case _:
            pass
