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
from parley_gateway.apis.realtime.output_audio import Part
from parley_gateway.apis.realtime.server_events import Emit

RATE = 48_000
"""Hertz, as Opus has it."""
_FRAME_MS = 20
_FRAME = RATE * _FRAME_MS // 1000
_TIME_BASE = fractions.Fraction(1, RATE)
_LATE_S = 0.2
"""A clock that is further behind is set anew: nobody wants to hear ten frames at once."""


@dataclass
class _Piece:
    response_id: str
    offset_ms: float
    samples: NDArray[np.int16]


class VoiceTrack(MediaStreamTrack):
    """Plays what it is given at the pace of a clock, and silence where there is nothing.

    Args:
        room_s: How much may wait to be played; the agent is half a second ahead at most (seconds).
        drained: Told when everything was played.
    """

    kind = "audio"

    def __init__(self, room_s: float, drained: Callable[[], None]) -> None:
        super().__init__()
        self._room = round(room_s * RATE)
        self._drained = drained
        self._pieces: deque[_Piece] = deque()
        self._queued = 0
        self._paused = False
        self._played: tuple[str, float] | None = None
        self._began = 0.0
        self._count = 0

    @property
    def played(self) -> tuple[str, float] | None:
        """The response that is being played, as the agent calls it, and how much of it was (milliseconds)."""
        return self._played

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to play."""
        return not self._pieces

    def push(self, response_id: str, offset_ms: float, samples: NDArray[np.int16]) -> bool:
        """Play this after what waits: mono, 48 kHz, int16 [n]; False: there is no room for it."""
        if self._queued + len(samples) > self._room:
            return False
        self._pieces.append(_Piece(response_id, offset_ms, samples))
        self._queued += len(samples)
        return True

    def clear(self) -> None:
        """Play nothing of what waits."""
        self._pieces.clear()
        self._queued = 0
        self._paused = False

    def pause(self) -> None:
        """Play silence, and keep what waits."""
        self._paused = True

    def resume(self) -> None:
        """Play on."""
        self._paused = False

    async def recv(self) -> AudioFrame:
        """The next 20 ms, when they are due."""
        if self.readyState != "live":
            raise MediaStreamError
        await self._until_due()
        frame = AudioFrame.from_ndarray(self._take().reshape(1, -1), format="s16", layout="mono")
        frame.sample_rate = RATE
        frame.pts = self._count * _FRAME
        frame.time_base = _TIME_BASE
        self._count += 1
        return frame

    async def _until_due(self) -> None:
        now = time.monotonic()
        if not self._count:
            self._began = now
        wait_s = self._began + self._count * _FRAME / RATE - now
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        elif wait_s < -_LATE_S:
            self._began -= wait_s

    def _take(self) -> NDArray[np.int16]:
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
            piece.offset_ms += 1000 * len(part) / RATE
            piece.samples = piece.samples[len(part) :]
            self._played = (piece.response_id, piece.offset_ms)
            if not len(piece.samples):
                self._pieces.popleft()
        if not self._pieces:
            self._drained()
        return taken


_log = logging.getLogger("parley.gateway")
assert RATE in OUTPUT_SAMPLE_RATES
_ROOM_S = 3.0
_MARK_MS = 200.0


class TrackSpeaker:
    """A :class:`~parley_gateway.apis.realtime.output_audio.Speaker` for WebRTC.

    Args:
        emit: Sends server events.
        mark: Takes how much of a response was played: the agent's id of it, and milliseconds.
    """

    def __init__(self, emit: Emit, mark: Callable[[str, int], None]) -> None:
        self._emit = emit
        self._mark = mark
        self.track = VoiceTrack(_ROOM_S, self._drained)
        self._playing: str | None = None
        """OpenAI's id of the response of which audio was begun and not ended."""
        self._over: str | None = None
        self._finished = False
        self._marked: tuple[str, float] = ("", 0.0)
        self._lacking = ""
        """OpenAI's id of the last response of which audio was dropped."""
        self.dropped_ms = 0.0
        """Audio for which the track had no room (milliseconds)."""

    def play(self, part: Part, audio: AgentAudio) -> None:
        """Play a piece after what waits."""
        if self._playing != part.response_id:
            self._stopped()
            self._playing, self._finished = part.response_id, False
            self._emit("output_audio_buffer.started", response_id=part.response_id)
        if not self.track.push(audio.response_id, audio.offset_ms, audio.samples):
            self._drop(part, len(audio.samples))
        self.tell_played()

    def finish(self) -> None:
        """The part has no more audio."""
        self._finished = True
        if self.track.is_empty:
            self._drained()

    def cut(self) -> None:
        """Play nothing more."""
        self.track.clear()
        playing, self._playing = self._playing, None
        if playing is not None:
            self._emit("output_audio_buffer.cleared", response_id=playing)

    def over(self, response_id: str) -> None:
        """The client was told that this response is over: now it may hear that its audio is, too."""
        self._over = response_id
        if self.track.is_empty:
            self._drained()

    def pause(self) -> None:
        """Stop for now."""
        self.track.pause()

    def resume(self) -> None:
        """Play on."""
        self.track.resume()

    def tell_played(self) -> None:
        """Tell the agent how much was played, now and then."""
        played = self.track.played
        if played is None:
            return
        response_id, played_ms = played
        marked_id, marked_ms = self._marked
        is_due = response_id != marked_id or played_ms >= marked_ms + _MARK_MS or self.track.is_empty
        if is_due and played != self._marked:
            self._marked = played
            self._mark(response_id, round(played_ms))

    def _drop(self, part: Part, samples: int) -> None:
        if self._lacking != part.response_id:
            self._lacking = part.response_id
            _log.warning("there is no room for all the audio of %s: some is not played", part.response_id)
        self.dropped_ms += 1000 * samples / RATE

    def _drained(self) -> None:
        self.tell_played()
        if self._finished and self._over is not None and self._over == self._playing:
            self._stopped()

    def _stopped(self) -> None:
        playing, self._playing = self._playing, None
        if playing is not None:
            self._emit("output_audio_buffer.stopped", response_id=playing)
