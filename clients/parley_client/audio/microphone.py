"""A microphone that speaks recorded clips in real time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import numpy as np

from parley.protocol import INPUT_SAMPLE_RATE
from parley_client.audio.files import Pcm, speech_span

DEFAULT_CHUNK_MS = 32
_MAX_CHUNK_MS = 500


@dataclass(eq=False)
class SpokenClip:
    """A clip on its way through the microphone.

    ``began_s`` and ``ended_s`` are when the clip's first and last loud sample were *spoken*
    (seconds on the microphone's clock): the truth that latencies are measured from.
    """

    samples: Pcm
    began: asyncio.Event = field(default_factory=asyncio.Event)
    """The chunk with the first loud sample was sent."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """The chunk with the last loud sample was sent."""
    began_s: float = 0.0
    ended_s: float = 0.0


class PacedMicrophone:
    """Sends chunks at the pace of a real microphone, silence between the clips.

    A chunk is sent when its last sample has been spoken, on a fixed schedule, so that being late
    once does not make everything after it late. Like a real microphone it never pauses.

    Args:
        send: Takes a chunk: 16 kHz mono, shape [n].
        chunk_ms: Length of a chunk (milliseconds).
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        send: Callable[[Pcm], Awaitable[None]],
        *,
        chunk_ms: int = DEFAULT_CHUNK_MS,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if not 1 <= chunk_ms <= _MAX_CHUNK_MS:
            raise ValueError(f"chunks have 1 to {_MAX_CHUNK_MS} ms, not {chunk_ms}")
        self._send = send
        self._chunk = chunk_ms * INPUT_SAMPLE_RATE // 1000
        self._clock = clock
        self._current: SpokenClip | None = None
        self._position = 0
        self._sent = 0
        self.began_s = clock()
        """When the first sample was spoken."""
        self.worst_late_s = 0.0
        """The longest that a chunk left behind its time: how busy the client was."""

    def speak(self, samples: Pcm) -> SpokenClip:
        """Begin to speak a clip with the chunk that is being recorded now.

        Raises:
            RuntimeError: another clip is still being spoken.
        """
        if self._current is not None and not self._current.ended.is_set():
            raise RuntimeError("the microphone is speaking already")
        first, last = speech_span(samples)
        spoken = SpokenClip(samples)
        spoken.began_s = self._time_of(self._sent + first)
        spoken.ended_s = self._time_of(self._sent + last)
        self._current, self._position = spoken, 0
        return spoken

    def restart(self) -> float:
        """Begin now; returns ``began_s``."""
        self.began_s = self._clock() - self._sent / INPUT_SAMPLE_RATE
        return self.began_s

    async def run(self) -> None:
        """Send for ever; cancel to stop."""
        while True:
            due = self._time_of(self._sent + self._chunk)
            await asyncio.sleep(max(0.0, due - self._clock()))
            self.worst_late_s = max(self.worst_late_s, self._clock() - due)
            spoken = self._current
            await self._send(self._next_chunk())
            if spoken is not None:
                self._note_progress(spoken, due)

    def _time_of(self, sample: int) -> float:
        return self.began_s + sample / INPUT_SAMPLE_RATE

    def _next_chunk(self) -> Pcm:
        chunk = np.zeros(self._chunk, np.int16)
        self._sent += self._chunk
        if self._current is not None:
            piece = self._current.samples[self._position : self._position + self._chunk]
            chunk[: len(piece)] = piece
            self._position += self._chunk
            if self._position >= len(self._current.samples):
                self._current = None
        return chunk

    def _note_progress(self, spoken: SpokenClip, until_s: float) -> None:
        if until_s > spoken.began_s:
            spoken.began.set()
        if until_s >= spoken.ended_s:
            spoken.ended.set()
