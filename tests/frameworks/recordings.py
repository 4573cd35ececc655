"""What callers say: recordings, as a microphone delivers them."""

from __future__ import annotations

import asyncio
import time
import wave
from array import array
from collections import deque
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RATE = 16_000
FRAME_S = 0.02
_FRAME = int(RATE * FRAME_S) * 2
# Of a clip's loudest sample; what is softer at its end is no speech.
_SILENT = 0.01


def recording(name):
    """The bytes of one of the demonstration's clips: mono PCM16, 16 kHz."""
    with wave.open(str(ROOT / "tests" / "data" / "conversation" / f"{name}.wav")) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (RATE, 1, 2)
        return file.readframes(file.getnframes())


def _peak(piece):
    return max(map(abs, array("h", piece)))


class Microphone:
    """Silence, and what is put into it, in pieces of 20 ms at the pace of a clock."""

    def __init__(self):
        self._waiting = deque()
        self.spoke_until = 0.0
        """When the last sound of a clip left (seconds of the monotonic clock)."""

    def say(self, name):
        """Say a clip after what is being said."""
        audio = recording(name)
        pieces = [
            audio[start : start + _FRAME].ljust(_FRAME, b"\0") for start in range(0, len(audio), _FRAME)
        ]
        loudest = max(map(_peak, pieces))
        self._waiting += [(piece, _peak(piece) > loudest * _SILENT) for piece in pieces]

    async def frames(self):
        """Pieces without end."""
        due = time.monotonic()
        while True:
            piece, sounds = self._waiting.popleft() if self._waiting else (bytes(_FRAME), False)
            if sounds:
                self.spoke_until = time.monotonic()
            yield piece
            due += FRAME_S
            await asyncio.sleep(max(0.0, due - time.monotonic()))


class Notes:
    """Remembers what happened, and lets tests wait for it."""

    def __init__(self):
        self.events = []
        self.times = []
        """When each came (seconds of the monotonic clock)."""
        self._more = asyncio.Event()

    def add(self, event):
        self.events.append(event)
        self.times.append(time.monotonic())
        self._more.set()

    async def next(self, seen, *, timeout_s=20.0):
        """Return when there are more than ``seen`` events."""
        try:
            async with asyncio.timeout(timeout_s):
                while len(self.events) <= seen:
                    self._more.clear()
                    await self._more.wait()
        except TimeoutError:
            raise AssertionError(f"nothing more happened after {self.events[-40:]}") from None

    async def wait(self, matches, *, since=0, timeout_s=20.0):
        """The first event from number ``since`` on that matches."""
        seen = since
        deadline = time.monotonic() + timeout_s
        while True:
            for event in self.events[seen:]:
                if matches(event):
                    return event
            seen = len(self.events)
            await self.next(seen, timeout_s=deadline - time.monotonic())
