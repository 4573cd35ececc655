"""Lets the agent's voice be heard by a track, and tells the client when."""

from __future__ import annotations

import logging
from collections.abc import Callable

from parley.protocol import OUTPUT_SAMPLE_RATES
from parley_client.events import AgentAudio
from parley_gateway.doors.realtime.events import Emit
from parley_gateway.doors.realtime.speaker import Part
from parley_gateway.doors.realtime.webrtc.voice_track import RATE, VoiceTrack

_log = logging.getLogger("parley.gateway")
assert RATE in OUTPUT_SAMPLE_RATES
_ROOM_S = 3.0
_MARK_MS = 200.0


class TrackSpeaker:
    """A :class:`~parley_gateway.doors.realtime.speaker.Speaker` for WebRTC.

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
