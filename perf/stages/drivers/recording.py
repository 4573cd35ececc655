"""A recogniser of whole recordings, whatever its protocol is."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import numpy as np
import soundfile

from stages.protocols import RATE, Pcm, Text


class RecordingRecognizer:
    """Collects an utterance, and has it transcribed when it is over.

    Args:
        transcribe: samples to text; raises EndpointError.
    """

    streams = False

    def __init__(self, transcribe: Callable[[Pcm], Awaitable[str]]) -> None:
        self._transcribe = transcribe

    @asynccontextmanager
    async def open(self) -> AsyncIterator[_Recording]:
        """See :class:`stages.protocols.Recognizer`."""
        recording = _Recording(self._transcribe)
        yield recording


class _Recording:
    def __init__(self, transcribe: Callable[[Pcm], Awaitable[str]]) -> None:
        self._transcribe = transcribe
        self._chunks: list[Pcm] = []
        self._ended = asyncio.Event()

    async def send(self, chunk: Pcm) -> None:
        self._chunks.append(chunk)

    async def end(self) -> None:
        self._ended.set()

    async def __aiter__(self) -> AsyncIterator[Text]:
        await self._ended.wait()
        yield Text(await self._transcribe(np.concatenate(self._chunks)), is_final=True)


def to_wav(samples: Pcm) -> bytes:
    """A WAV file of 16 kHz speech."""
    file = io.BytesIO()
    soundfile.write(file, samples, RATE, format="WAV", subtype="PCM_16")
    return file.getvalue()
