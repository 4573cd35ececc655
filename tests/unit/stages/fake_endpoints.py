"""Endpoints of this process, whose behaviour is a list of what they do."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import numpy as np
from harness.recordings import Recording
from stages.protocols import AnswerEnded, EndpointError, Sound, Text
from stages.turns import Patience

QUICK = Patience(turn_s=1.0, tail_s=0.3, settle_s=0.1, pause_s=0.01)


def loud(ms, rate=16_000):
    return np.full(ms * rate // 1000, 1_000, np.int16)


def utterance(text="one two", ms=64):
    return Recording("", text, loud(ms))


class Script:
    """What an endpoint sends once a condition of the audio so far holds; both sides of a stream."""

    def __init__(self, *steps):
        self._steps = steps
        self.heard = 0  # loud samples
        self.silent = 0  # samples after the last loud one
        self.ended = asyncio.Event()
        self._changed = asyncio.Event()

    async def send(self, chunk):
        if chunk.any():
            self.heard, self.silent = self.heard + int(np.count_nonzero(chunk)), 0
        else:
            self.silent += len(chunk)
        self._changed.set()

    async def end(self):
        self.ended.set()
        self._changed.set()

    async def __aiter__(self):
        for when, what in self._steps:
            while not when(self):
                self._changed.clear()
                await self._changed.wait()
            if isinstance(what, Exception):
                raise what
            yield what


def begun(stream):
    return stream.heard > 0


def over(stream):
    return stream.heard > 0 and stream.silent > 0


def ended(stream):
    return stream.ended.is_set()


class Streams:
    """A recogniser or an agent that runs one script for each stream in turn."""

    def __init__(self, *scripts, streams=True):
        self.streams = streams
        self._scripts = list(scripts)
        self.opened = []

    @asynccontextmanager
    async def open(self):
        script = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
        if isinstance(script, Exception):
            raise script
        stream = Script(*script)
        self.opened.append(stream)
        yield stream


REFUSED = EndpointError("full")
FINAL = Text("one two", is_final=True)
PARTIAL = Text("one", is_final=False)
ANSWER = Sound(loud(20), 16_000)
DONE = AnswerEnded()
