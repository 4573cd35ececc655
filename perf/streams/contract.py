"""What a recogniser must be able to do to be measured, and the loop that measures it.

Runs in every recogniser's own environment, so it needs only numpy and soundfile. One process holds
one recogniser on one processor; it takes a JSON object per line and answers with one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import soundfile
from numpy.typing import NDArray

RATE = 16_000
_GAP = np.zeros(RATE // 5, np.int16)
S = TypeVar("S")


class Runtime(Protocol[S]):
    """A streaming recogniser on one thread."""

    chunk: int
    """Samples of new audio that it takes at a time."""

    def open(self) -> S:
        """Begin a stream."""
        ...

    def feed(self, streams: Sequence[S], pieces: Sequence[NDArray[np.int16]]) -> None:
        """Recognise the next piece of every stream, all together."""
        ...

    def close(self, stream: S) -> str:
        """End a stream; all of its text."""
        ...


def serve(load: Callable[[Path, int], Runtime[Any]]) -> None:
    """Load a recogniser and answer requests until the input ends.

    Args:
        load: makes the recogniser from a model's folder and a look-ahead in encoder frames.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("look_ahead", type=int)
    parser.add_argument("clips", type=Path, nargs="+")
    args = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    clips = [soundfile.read(path, dtype="int16")[0] for path in args.clips]
    runtime = load(args.model, args.look_ahead)
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "texts":
            answer = {"texts": [transcribe(runtime, clip) for clip in clips]}
        else:
            answer = {"ms": step_times(runtime, clips, request["streams"], request["chunks"])}
        print(json.dumps(answer), flush=True)


def transcribe(runtime: Runtime[Any], clip: NDArray[np.int16]) -> str:
    """One recording, chunk by chunk."""
    stream = runtime.open()
    for start in range(0, len(clip), runtime.chunk):
        runtime.feed([stream], [clip[start : start + runtime.chunk]])
    return runtime.close(stream)


def step_times(
    runtime: Runtime[Any], clips: Sequence[NDArray[np.int16]], count: int, chunks: int
) -> list[float]:
    """Milliseconds of each step of ``count`` streams that all have a chunk, after one for warming up.

    Every stream hears all recordings, beginning with another one.
    """
    streams = [runtime.open() for _ in range(count)]
    speech = [
        np.concatenate([part for clip in (*clips[i:], *clips[:i]) for part in (clip, _GAP)])
        for i in range(len(clips))
    ]
    times = []
    for step in range(chunks + 1):
        start = step * runtime.chunk
        pieces = [
            speech[number % len(speech)].take(range(start, start + runtime.chunk), mode="wrap")
            for number in range(count)
        ]
        began = time.perf_counter()
        runtime.feed(streams, pieces)
        times.append(1000 * (time.perf_counter() - began))
    for stream in streams:
        runtime.close(stream)
    return times[1:]
