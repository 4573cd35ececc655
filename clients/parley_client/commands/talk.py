"""``parley talk``: talk to the agent with this machine's microphone."""

from __future__ import annotations

import argparse
import asyncio
import time
from contextlib import suppress

from rich.console import Console

from parley import protocol
from parley_client.audio.device import AudioDevice, Speaker, load_sounddevice
from parley_client.audio.files import Pcm
from parley_client.call import Call
from parley_client.commands.common import add_server, add_session, open_call, tool_table
from parley_client.errors import ClientError
from parley_client.events import AgentAudio, CallEvent
from parley_client.playback import PlaybackMarks
from parley_client.terminal.view import CallView

HELP = "talk to the agent with the microphone (in the checkout: make talk)"
_POLL_S = 0.02
_WANTED_ENDS = ("ended", "hangup")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    add_server(parser)
    add_session(parser)


async def run(args: argparse.Namespace, console: Console) -> int:
    """Talk until the agent closes the call or Ctrl-C is pressed.

    Returns:
        The exit status: 1 if the server closed the call for a reason of its own.

    Raises:
        AudioDeviceError: no usable microphone or loudspeaker.
        ParleyError: the call could not be opened or broke.
    """
    load_sounddevice()
    view = CallView(console)
    speaker = Speaker(args.output_rate)
    with view:
        async with open_call(args, tool_table(args, view.show_tool_answer)) as call:
            console.print("Speak. Use headphones, or the agent hears itself. Ctrl-C hangs up.")
            with AudioDevice(speaker, args.output_rate, lambda block: _offer(call, block)):
                marks = PlaybackMarks(call, speaker.played_ms)
                marking = asyncio.create_task(_keep_marking(marks, speaker), name="playback-marks")
                try:
                    await _listen(call, view, speaker, marks)
                finally:
                    marking.cancel()
                    await asyncio.gather(marking, return_exceptions=True)
            closed = call.closed
    return 0 if closed is not None and closed.reason in _WANTED_ENDS else 1


def _offer(call: Call, block: Pcm) -> None:
    # The device's last blocks come when the call has been hung up; of a loss the reader tells.
    with suppress(ClientError):
        call.offer_audio(block)


async def _listen(call: Call, view: CallView, speaker: Speaker, marks: PlaybackMarks) -> None:
    began = time.perf_counter()
    async for event in call:
        _play(event, speaker)
        _mark(marks, speaker)
        view.show(event, time.perf_counter() - began)


def _play(event: CallEvent, speaker: Speaker) -> None:
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


async def _keep_marking(marks: PlaybackMarks, speaker: Speaker) -> None:
    while True:
        await asyncio.sleep(_POLL_S)
        _mark(marks, speaker)


def _mark(marks: PlaybackMarks, speaker: Speaker) -> None:
    marks.update(speaker.playing(), time.perf_counter())
