"""The agent's voice as a WebRTC track."""

from __future__ import annotations

import asyncio
import fractions
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from aiortc import MediaStreamTrack
from aiortc.mediastreams import MediaStreamError
from av import AudioFrame
from numpy.typing import NDArray

from parley.protocol import OUTPUT_SAMPLE_RATES
from parley_client.events import AgentAudio
from parley_gateway.apis.realtime.output_audio import AudioOutput, Part
from parley_gateway.apis.realtime.server_events import Emit

_log = logging.getLogger("parley.gateway")
RATE_HZ = 48_000
"""Opus' sample rate."""
assert RATE_HZ in OUTPUT_SAMPLE_RATES
_QUEUE_S = 3.0
_REPORT_MS = 200.0
_FRAME_MS = 20
_FRAME = RATE_HZ * _FRAME_MS // 1000
_TIME_BASE = fractions.Fraction(1, RATE_HZ)
_LATE_S = 0.2
"""A clock that is further behind is reset instead of sending many frames at once."""


@dataclass
class _Piece:
    response_id: str
    offset_ms: float
    samples: NDArray[np.int16]


class VoiceTrack(MediaStreamTrack):
    """Plays at most ``queue_s`` of queued audio in real time, and silence without any."""

    kind = "audio"

    def __init__(self, queue_s: float, on_drained: Callable[[], None]) -> None:
        super().__init__()
        self._max_samples = round(queue_s * RATE_HZ)
        self._on_drained = on_drained
        self._pieces: deque[_Piece] = deque()
        self._queued = 0
        self._paused = False
        self.played: tuple[str, float] | None = None
        """The agent's id of the response that was played last, and how much of it was (milliseconds)."""
        self._began_s = 0.0
        self._frames = 0

    @property
    def is_empty(self) -> bool:
        """Whether the queue is empty."""
        return not self._pieces

    def push(self, response_id: str, offset_ms: float, samples: NDArray[np.int16]) -> bool:
        """Append audio (mono, 48 kHz, int16 [n]); returns False if it has no room in the queue."""
        if self._queued + len(samples) > self._max_samples:
            return False
        self._pieces.append(_Piece(response_id, offset_ms, samples))
        self._queued += len(samples)
        return True

    def clear(self) -> None:
        """Discard the queue."""
        self._pieces.clear()
        self._queued = 0
        self._paused = False

    def pause(self) -> None:
        """Play silence and keep the queue."""
        self._paused = True

    def resume(self) -> None:
        """Continue with the queue."""
        self._paused = False

    async def recv(self) -> AudioFrame:
        """Wait for the next 20 ms of real time and return their audio."""
        if self.readyState != "live":
            raise MediaStreamError
        await self._until_due()
        frame = AudioFrame.from_ndarray(self._next_samples().reshape(1, -1), format="s16", layout="mono")
        frame.sample_rate = RATE_HZ
        frame.pts = self._frames * _FRAME
        frame.time_base = _TIME_BASE
        self._frames += 1
        return frame

    async def _until_due(self) -> None:
        now = time.monotonic()
        if not self._frames:
            self._began_s = now
        wait_s = self._began_s + self._frames * _FRAME / RATE_HZ - now
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        elif wait_s < -_LATE_S:
            self._began_s -= wait_s

    def _next_samples(self) -> NDArray[np.int16]:
        taken = np.zeros(_FRAME, np.int16)
        if self._paused or not self._pieces:
            return taken
        at = 0
        while at < _FRAME and self._pieces:
            piece = self._pieces[0]
            part = piece.samples[: _FRAME - at]
            taken[at : at + len(part)] = part
            at += len(part)
            self._queued -= len(part)
            piece.offset_ms += 1000 * len(part) / RATE_HZ
            piece.samples = piece.samples[len(part) :]
            self.played = (piece.response_id, piece.offset_ms)
            if not len(piece.samples):
                self._pieces.popleft()
        if not self._pieces:
            self._on_drained()
        return taken


class TrackSpeaker(AudioOutput):
    """Plays the agent's audio over WebRTC; ``report`` gets the played milliseconds of a response."""

    def __init__(self, emit: Emit, report: Callable[[str, int], None]) -> None:
        self._emit = emit
        self._report = report
        self.track = VoiceTrack(_QUEUE_S, self._drained)
        self._playing: str | None = None
        """OpenAI's id of the response whose audio has started and not ended."""
        self._done: str | None = None
        """OpenAI's id of the response whose ``response.done`` was sent."""
        self._finished = False
        self._reported: tuple[str, float] = ("", 0.0)
        self._truncated = ""
        """OpenAI's id of the last response whose audio was dropped in part."""

    def play(self, part: Part, audio: AgentAudio) -> None:
        """Append audio of a part."""
        if self._playing != part.response_id:
            self._stopped()
            self._playing, self._finished = part.response_id, False
            self._emit("output_audio_buffer.started", response_id=part.response_id)
        if not self.track.push(audio.response_id, audio.offset_ms, audio.samples):
            self._warn_of_drop(part)
        self.report_playback()

    def finish(self) -> None:
        """End the audio of the current part."""
        self._finished = True
        if self.track.is_empty:
            self._drained()

    def clear(self) -> None:
        """Discard what was not played."""
        self.track.clear()
        playing, self._playing = self._playing, None
        if playing is not None:
            self._emit("output_audio_buffer.cleared", response_id=playing)

    def on_response_done(self, response_id: str) -> None:
        """``response.done`` was sent: only then the end of the audio is reported."""
        self._done = response_id
        if self.track.is_empty:
            self._drained()

    def pause(self) -> None:
        """Play silence and keep what was not played."""
        self.track.pause()

    def resume(self) -> None:
        """Continue playback."""
        self.track.resume()

    def report_playback(self) -> None:
        """Report the progress of playback to the agent, at intervals."""
        played = self.track.played
        if played is None:
            return
        response_id, played_ms = played
        reported_id, reported_ms = self._reported
        is_due = response_id != reported_id or played_ms >= reported_ms + _REPORT_MS or self.track.is_empty
        if is_due and played != self._reported:
            self._reported = played
            self._report(response_id, round(played_ms))

    def _warn_of_drop(self, part: Part) -> None:
        if self._truncated != part.response_id:
            self._truncated = part.response_id
            _log.warning("the audio of %s is too long for the queue: some is not played", part.response_id)

    def _drained(self) -> None:
        self.report_playback()
        if self._finished and self._done is not None and self._done == self._playing:
            self._stopped()

    def _stopped(self) -> None:
        playing, self._playing = self._playing, None
        if playing is not None:
            self._emit("output_audio_buffer.stopped", response_id=playing)
