"""Connects the audio of a telephone call with the agent, in real time."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from parley import protocol
from parley.errors import InvalidMessageError, OverloadedError
from parley.timeouts import first_to_end, loop_time
from parley_client.audio.playout import Heard, PlayoutClock
from parley_client.call import Call
from parley_client.errors import CallEndedError, CallLostError
from parley_client.events import AgentAudio, CallEvent
from parley_gateway.sip.answering_machine import AnswerDetection, AnsweredBy
from parley_gateway.sip.rtp import RtpStream
from parley_gateway.sip.session_description import FRAME_MS

_log = logging.getLogger("parley.gateway")
_FRAME_S = FRAME_MS / 1000
_LATE_S = 0.2
"""A clock that is further behind is set again, instead of sending many frames at once."""
_REPORT_MS = 200.0
_UNKNOWN = "answered by?"
"""In the place of a response, while it is not known who has answered: nothing is played."""
_OVER = (CallEndedError, CallLostError)
_NO_PACKETS_S = 60.0
"""Without packets for so long the peer is gone; some send none in silence."""
_HOLD_S = 1_800.0
"""The same while it holds the call."""
_TONE_S = 1.0
"""Between the end of a machine's greeting and that of its tone."""
_MACHINE_SPEAKS_S = 60.0
"""The longest greeting of a machine; then the message is spoken over it."""

OnMachine = Literal["hang_up", "leave_message", "go_on"]
Reason = Literal["machine", "silent_line", "lost"] | protocol.CloseReason
"""Why a call is over. ``silent_line``: no packets came. ``lost``: the agent's server."""


class PhoneLine:
    """One conversation over one telephone call.

    Args:
        call: The agent's, whose output has the sample rate of the stream.
        stream: The caller's audio.
        farewell_s: How long the rest of the agent's audio may play after its end.
    """

    def __init__(self, call: Call, stream: RtpStream, *, farewell_s: float) -> None:
        self._call = call
        self._stream = stream
        self._clock = PlayoutClock(self._on_heard)
        self._heard: deque[NDArray[np.int16]] = deque()
        self._now_s = 0.0
        """The line's own clock, in frames, so that each frame is whole."""
        self._playing = ""
        self._reported = ("", 0.0)
        self._farewell_s = farewell_s
        self._detection: AnswerDetection | None = None
        self._on_answered_by: Callable[[AnsweredBy], None] = lambda _: None
        self._on_machine: OnMachine = "go_on"
        self._message = ""
        self._message_is: Literal["none", "waits", "spoken"] = "none"
        self._message_id = ""
        self._is_speaking = False
        self._spoken_s = 0.0
        """When the machine has stopped speaking."""
        self._is_held = False
        self._reason: Reason = "lost"
        self.is_on_hold = False
        """Whether the peer sends nothing because it holds the call."""

    def ask_who_answered(
        self, on_answered_by: Callable[[AnsweredBy], None], on_machine: OnMachine, message: str
    ) -> None:
        """Let the agent wait until it is known who has answered; before :meth:`run`.

        Args:
            on_answered_by: Called when it is known.
            on_machine: What happens then if it is a machine.
            message: What is left there.
        """
        self._detection = AnswerDetection()
        self._on_answered_by, self._on_machine, self._message = on_answered_by, on_machine, message
        self._is_held = True
        self._clock.pause(_UNKNOWN, 0.0)

    async def run(self) -> Reason:
        """Until the agent ends the call, or the line is silent; returns why."""
        async with first_to_end(self._play(), self._read_events()) as (playing, reading):
            ended = playing if playing.done() else reading
            ended.result()
        if ended is reading:
            await self._play_out()
        return self._reason

    async def _play_out(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._farewell_s):
                await self._play(to_the_end=True)

    async def _play(self, *, to_the_end: bool = False) -> None:
        """Send and receive a frame every 20 ms."""
        due_s = loop_time()
        while not (to_the_end and self._clock.queued_s(self._now_s) <= 0):
            due_s += _FRAME_S
            wait_s = due_s - loop_time()
            if wait_s < -_LATE_S:
                due_s -= wait_s
            await asyncio.sleep(max(0.0, wait_s))
            self._now_s += _FRAME_S
            self._clock.advance(self._now_s)
            self._stream.send(self._next_frame())
            samples = self._stream.receive()
            with suppress(*_OVER):
                self._call.offer_audio(samples)
                self._report()
            if self._detect() or self._is_line_silent():
                return

    def _is_line_silent(self) -> bool:
        limit_s = _HOLD_S if self.is_on_hold else _NO_PACKETS_S
        if loop_time() - self._stream.received_s < limit_s:
            return False
        self._reason = "silent_line"
        return True

    def _next_frame(self) -> NDArray[np.int16]:
        frame = np.zeros(self._stream.sample_rate * FRAME_MS // 1000, np.int16)
        at = 0
        while self._heard and at < len(frame):
            piece = self._heard.popleft()
            taken = piece[: len(frame) - at]
            frame[at : at + len(taken)] = taken
            at += len(taken)
            if len(taken) < len(piece):
                self._heard.appendleft(piece[len(taken) :])
        return frame

    def _on_heard(self, heard: Heard) -> None:
        self._heard.append(heard.samples)
        self._playing = heard.response_id

    def _report(self) -> None:
        """Tell the agent how much of its answer was played, at intervals and at its end."""
        if not self._playing:
            return
        played_ms = self._clock.played_ms(self._playing)
        response_id, before_ms = self._reported
        is_begun = response_id == self._playing and played_ms < before_ms + _REPORT_MS
        if is_begun and (played_ms == before_ms or self._clock.queued_s(self._now_s) > 0):
            return
        self._reported = (self._playing, played_ms)
        with suppress(OverloadedError):  # a later one replaces it
            self._call.report_playback(self._playing, played_ms)

    # --- events of the agent -------------------------------------------------------------------

    async def _read_events(self) -> None:
        async for event in self._call:
            self._on_event(event)
            is_done = isinstance(event, protocol.ResponseDone) and event.response_id == self._message_id
            if is_done and self._message_is == "spoken":
                self._reason = "machine"
                return
        if self._call.closed is not None:
            self._reason = self._call.closed.reason

    def _on_event(self, event: CallEvent) -> None:
        now = self._now_s
        match event:
            case AgentAudio():
                self._on_audio(event)
            case protocol.Paused(response_id=response_id):
                self._clock.pause(response_id, now)
            case protocol.Resumed(response_id=response_id):
                self._clock.resume(response_id, now)
            case protocol.Interrupted(response_id=response_id):
                self._clock.interrupt(response_id, now)
                self._heard.clear()
                if response_id == self._message_id:
                    self._message_id = ""  # it was the answer to the machine
            case protocol.SpeechStarted() | protocol.SpeechStopped() | protocol.Transcript():
                self._on_speech(event)

    def _on_speech(
        self, event: protocol.SpeechStarted | protocol.SpeechStopped | protocol.Transcript
    ) -> None:
        if (detection := self._detection) is None:
            return
        match event:
            case protocol.SpeechStarted(at_ms=at_ms):
                self._is_speaking = True
                detection.on_speech_started(at_ms)
            case protocol.SpeechStopped(at_ms=at_ms):
                self._is_speaking = False
                self._spoken_s = self._now_s
                detection.on_speech_stopped(at_ms)
            case protocol.Transcript(text=text):
                detection.on_transcript(text)

    def _on_audio(self, audio: AgentAudio) -> None:
        if self._message_is == "spoken":
            self._message_id = audio.response_id
        if self._message_is == "waits":
            return  # what the agent answers to a machine
        self._clock.push(audio, self._now_s)
        if self._is_held:
            with suppress(OverloadedError, *_OVER):
                self._call.report_playback(audio.response_id, 0)

    def send_key(self, key: str) -> None:
        """A key of the caller's telephone."""
        try:
            self._call.send_dtmf(key)
        except (InvalidMessageError, OverloadedError, *_OVER) as error:
            _log.warning("call %s: a DTMF key is lost: %s", self._call.id, error.code)

    # --- who has answered ----------------------------------------------------------------------

    def _detect(self) -> bool:
        """Decide who has answered, and do what follows from it; True: the call is over."""
        detection, now_ms = self._detection, 1000 * self._now_s
        if detection is None:
            return False
        if self._is_held:
            detection.on_time(round(now_ms))
            if detection.answered_by is None:
                return False
            self._is_held = False
            self._on_answered_by(detection.answered_by)
            return self._on_decided(detection.answered_by)
        is_quiet = not self._is_speaking and self._now_s >= self._spoken_s + _TONE_S
        if self._message_is == "waits" and (is_quiet or self._now_s > _MACHINE_SPEAKS_S):
            self._leave_message()
        return False

    def _on_decided(self, answered_by: AnsweredBy) -> bool:
        if answered_by == "machine" and self._on_machine != "go_on":
            if self._on_machine == "hang_up":
                self._reason = "machine"
                return True
            self._clock = PlayoutClock(self._on_heard)
            self._message_is = "waits"
        else:
            self._detection = None
            self._clock.resume(_UNKNOWN, self._now_s)
        return False

    def _leave_message(self) -> None:
        with suppress(OverloadedError, *_OVER):
            self._call.interrupt()
            self._call.mute()
            self._call.say(self._message, interruptible=False)
            self._message_is = "spoken"
