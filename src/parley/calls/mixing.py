"""The audio of a call as the user had it: both sides in time, the agent's as far as it was played.

Pure bookkeeping: the time is always given by the caller, in seconds of one monotonic clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parley.audio.pcm import Resampler
from parley.protocol import INPUT_SAMPLE_RATE, Audio

RATE = INPUT_SAMPLE_RATE
_PER_MS = RATE // 1000
_WINDOW = 3 * RATE
"""Frames that are kept before they are final: an interruption says later how much was played before it."""
_AHEAD = 5 * RATE
"""Audio of the user may be so much ahead of the clock; beyond it the clock is set forward."""
_GAP = RATE // 2
"""Audio of the user that is later than this was not sent: what is missing is silence."""
_STEP = RATE
_CAPACITY = _WINDOW + _AHEAD + 4 * _STEP
_MAX_ANCHORS = 512


@dataclass
class Piece:
    """Audio of the agent that is to be played, or was played."""

    response_id: str
    begin: int
    """In the response's audio (frames)."""
    audio: NDArray[np.int16]
    text: str
    """Words that begin with it."""
    at: int = 0
    """Where it was played, in the recording (frames)."""


class CallMixer:
    """Puts both sides on one clock, at 16 kHz; the user is the left channel, the agent the right one.

    :meth:`take` gives what is final, in pieces of a second. The clock begins at ``began``.

    ``sent_ms``: where in all audio of the user the first chunk begins; not 0 where the call goes on.
    """

    def __init__(self, began: float, sent_ms: int = 0) -> None:
        self._began = began
        self._skew = 0
        self._buffer = np.zeros((_CAPACITY, 2), np.int16)
        self._base = 0  # frame of the buffer's first row
        self._clock = 0  # the agent's side is played up to here
        self._user_end = 0
        self._user_frames = sent_ms * _PER_MS
        self._anchors: deque[tuple[int, int]] = deque([(self._user_frames, 0)], maxlen=_MAX_ANCHORS)
        self._queue: deque[Piece] = deque()
        self._played: deque[Piece] = deque()
        self._words: list[tuple[int, str, str]] = []
        self._paused = False
        self._resampler: tuple[str, Resampler] | None = None
        self._response_end = 0

    def ms(self, now: float) -> int:
        """A moment, in milliseconds of the recording."""
        return self._frame(now) // _PER_MS

    def place(self, at_ms: int) -> int:
        """A position in the audio that the user has sent, in milliseconds of the recording; at least 0."""
        sent = at_ms * _PER_MS
        begin, at = next((one for one in reversed(self._anchors) if one[0] <= sent), self._anchors[0])
        return max(0, at + sent - begin) // _PER_MS

    def add_user(self, audio: NDArray[np.int16] | int, now: float) -> Iterator[bytes]:
        """A chunk of the user's audio has come; a number: so many samples of it are left out.

        Yields:
            What is final now, as :meth:`take`.
        """
        count = audio if isinstance(audio, int) else len(audio)
        self._skew += max(0, self._user_end + count - self._frame(now) - _AHEAD)
        yield from self.take(now)
        begin = self._frame(now) - count
        if self._user_end < max(self._base, begin - _GAP):
            self._user_end = max(self._base, begin)
        if self._user_end - self._user_frames != self._anchors[-1][1] - self._anchors[-1][0]:
            self._anchors.append((self._user_frames, self._user_end))
        if not isinstance(audio, int):
            self._rows(self._user_end, count)[:, 0] = audio
        self._user_end += count
        self._user_frames += count

    def add_agent(self, event: Audio, audio: NDArray[np.int16]) -> None:
        """A piece of the agent's audio was sent; it is played behind what was sent before."""
        if self._resampler is None or self._resampler[0] != event.response_id:
            self.end_response()
            self._resampler = event.response_id, Resampler(event.sample_rate, RATE)
            self._response_end = event.offset_ms * _PER_MS
        self._enqueue(event.response_id, self._resampler[1].push(audio), event.text)

    def end_response(self) -> None:
        """No more audio of the response follows."""
        if self._resampler is not None:
            response_id, resampler = self._resampler
            self._resampler = None
            self._enqueue(response_id, resampler.finish(), "")

    def _enqueue(self, response_id: str, audio: NDArray[np.int16], text: str) -> None:
        if len(audio) or text:
            self._queue.append(Piece(response_id, self._response_end, audio, text))
            self._response_end += len(audio)

    def pause(self, *, paused: bool) -> None:
        """The agent's audio stands still from the moment of the last :meth:`take`, or goes on."""
        self._paused = paused

    def interrupt(self, response_id: str, played_ms: int) -> None:
        """Of a response only so much was played."""
        if self._resampler is not None and self._resampler[0] == response_id:
            self._resampler = None
        self._queue = deque(one for one in self._queue if one.response_id != response_id)
        self._paused = False
        limit = played_ms * _PER_MS
        for one in self._played:
            if one.response_id != response_id:
                continue
            if one.begin >= limit:
                one.text = ""
            begin, end = max(self._base, one.at + max(0, limit - one.begin)), one.at + len(one.audio)
            if begin < end:
                self._rows(begin, end - begin)[:, 1] = 0

    def take(self, now: float) -> Iterator[bytes]:
        """What is final at this time: PCM16 of both channels, and none of it twice."""
        end = self._frame(now)
        while self._clock < end:
            step = min(_STEP, end - self._clock)
            self._play(step)
            self._clock += step
            if self._clock - _WINDOW >= self._base + _STEP:
                yield self._release(self._clock - _WINDOW)

    def finish(self, now: float) -> Iterator[bytes]:
        """All of the rest: the call is over."""
        yield from self.take(now)
        yield self._release(max(self._clock, self._user_end))

    def words(self) -> list[tuple[int, str, str]]:
        """Words whose place is final, each once: milliseconds of the recording, response, text."""
        final, self._words = self._words, []
        return final

    def _frame(self, now: float) -> int:
        return max(0, int((now - self._began) * RATE)) + self._skew

    def _rows(self, begin: int, count: int) -> NDArray[np.int16]:
        return self._buffer[begin - self._base : begin - self._base + count]

    def _play(self, frames: int) -> None:
        """Play the agent's audio for so long."""
        at, end = self._clock, self._clock + frames
        while self._queue and not self._paused and (at < end or not len(self._queue[0].audio)):
            piece = self._queue.popleft()
            if len(rest := piece.audio[end - at :]):
                self._queue.appendleft(Piece(piece.response_id, piece.begin + end - at, rest, ""))
            piece.at, piece.audio = at, piece.audio[: end - at]
            self._rows(at, len(piece.audio))[:, 1] = piece.audio
            self._played.append(piece)
            at += len(piece.audio)

    def _release(self, end: int) -> bytes:
        count = end - self._base
        final = self._buffer[:count].tobytes()
        self._buffer[: _CAPACITY - count] = self._buffer[count:].copy()
        self._buffer[_CAPACITY - count :] = 0
        self._base = end
        while self._played and self._played[0].at + len(self._played[0].audio) <= end:
            piece = self._played.popleft()
            if piece.text:
                self._words.append((piece.at // _PER_MS, piece.response_id, piece.text))
        return final
