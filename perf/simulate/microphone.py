"""The caller's microphone: whatever sounds at a time, mixed and sent at the pace of time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulate.rendering import Clip
from simulate.voices import RATE

CHUNK_MS = 32
_CHUNK = CHUNK_MS * RATE // 1000
_ROOM_RMS = 8.0
"""Even a quiet room is not silent: -72 dB of full scale."""
_ECHO_SECONDS = 12
_FADE = RATE // 20


@dataclass(frozen=True)
class Placed:
    """A clip in time. Seconds of the call: since the microphone's first sample."""

    began_s: float
    """Its first loud sample."""
    ended_s: float
    """Its last one."""
    pauses: tuple[tuple[float, float], ...]
    over_s: float
    """When the whole clip is over."""


class Mixer:
    """What the microphone records, chunk by chunk, without any clock.

    Args:
        seed: of the room's noise.
    """

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._clips: list[tuple[int, NDArray[np.int16]]] = []
        self._loop: NDArray[np.float64] | None = None
        self._loop_since = 0
        self._echo = np.zeros(_ECHO_SECONDS * RATE)
        self.sent = 0
        """Samples taken so far."""

    def place(self, clip: Clip) -> Placed:
        """A clip begins with the chunk that is being recorded now, over whatever sounds already."""
        start = self.sent
        self._clips.append((start, clip.samples))
        return Placed(
            began_s=(start + clip.first) / RATE,
            ended_s=(start + clip.last) / RATE,
            pauses=tuple(((start + a) / RATE, (start + b) / RATE) for a, b in clip.pauses),
            over_s=(start + len(clip.samples)) / RATE,
        )

    def set_background(self, loop: NDArray[np.float64] | None) -> None:
        """This goes on from now on (scale of 16-bit samples), repeated; None: nothing."""
        self._loop, self._loop_since = loop, self.sent

    def add_echo(self, at: int, samples: NDArray[np.float64]) -> None:
        """Something from the loudspeaker arrives at sample ``at``; what is in the past already is lost."""
        first = max(at, self.sent)
        rest = samples[first - at :]
        room = len(self._echo) - (first - self.sent)
        rest = rest[: max(0, room)]
        places = (first + np.arange(len(rest))) % len(self._echo)
        self._echo[places] += rest

    def take(self) -> NDArray[np.int16]:
        """The next chunk."""
        start, stop = self.sent, self.sent + _CHUNK
        mixed = self._rng.normal(0.0, _ROOM_RMS, _CHUNK)
        if self._loop is not None:
            places = np.arange(start, stop) - self._loop_since
            mixed += self._loop[places % len(self._loop)] * np.minimum(1.0, places / _FADE)
        places = np.arange(start, stop) % len(self._echo)
        mixed += self._echo[places]
        self._echo[places] = 0.0
        for at, samples in self._clips:
            first, last = max(at, start), min(at + len(samples), stop)
            if first < last:
                mixed[first - start : last - start] += samples[first - at : last - at]
        self._clips = [(at, samples) for at, samples in self._clips if at + len(samples) > stop]
        self.sent = stop
        return np.asarray(np.clip(np.rint(mixed), -32_768, 32_767), np.int16)


class Microphone:
    """Sends a mixer's chunks; each when its last sample has been recorded, on a fixed schedule.

    Args:
        mixer: what is recorded.
        send: takes a chunk.
        before: is called before each chunk with its time, so that the loudspeaker's echo is there.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        mixer: Mixer,
        send: Callable[[NDArray[np.int16]], Awaitable[None]],
        *,
        before: Callable[[], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._mixer = mixer
        self._send = send
        self._before = before
        self._clock = clock
        self._began = clock()
        self.worst_late_s = 0.0
        """The longest that a chunk left behind its time."""

    def now(self) -> float:
        """Seconds of the call."""
        return self._clock() - self._began

    async def run(self) -> None:
        """Send for ever; cancel to stop."""
        self._began = self._clock()
        while True:
            due = (self._mixer.sent + _CHUNK) / RATE
            await asyncio.sleep(max(0.0, due - self.now()))
            self.worst_late_s = max(self.worst_late_s, self.now() - due)
            self._before()
            await self._send(self._mixer.take())
