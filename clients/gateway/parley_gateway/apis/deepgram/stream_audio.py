"""The audio of a client's stream: raw, or in a container that its first bytes tell."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import numpy as np
from numpy.typing import NDArray

from parley_gateway.audio.codecs import AudioFormat, AudioStreamDecoder
from parley_gateway.audio.decoders import Decoders, StreamDecoder
from parley_gateway.audio.recordings import Container, PlainStream, stream_of


class StreamAudio:
    """Turns messages of audio into samples, in their order.

    Args:
        form: of raw audio; None: the first bytes tell the container.
        decoders: decode containers; :meth:`run` must run then.
        owner: of the decoder.
        hear: gets int16 ``[n]`` of 16 kHz; waited for before more is read.
    """

    def __init__(
        self,
        form: AudioFormat | None,
        decoders: Decoders,
        owner: str | None,
        hear: Callable[[NDArray[np.int16]], Awaitable[None]],
    ) -> None:
        self._raw = AudioStreamDecoder(form) if form else None
        self._decoders = decoders
        self._owner = owner
        self._hear = hear
        self._head = b""
        loop = asyncio.get_running_loop()
        self._container: asyncio.Future[Container] = loop.create_future()
        self._stream: asyncio.Future[StreamDecoder] = loop.create_future()
        self._heard = asyncio.Event()

    async def push(self, data: bytes) -> None:
        """Append a message; waits until there is room.

        Raises:
            InvalidAudioError: the first bytes are of no known container.
        """
        if self._raw is not None:
            for samples in self._raw.pieces(data):
                await self._hear(samples)
        elif self._container.done():
            await (await asyncio.shield(self._stream)).feed(data)
        else:
            await self._begin(self._head + data)

    async def _begin(self, head: bytes) -> None:
        form = stream_of(head)
        if form is None:
            self._head = head
        elif isinstance(form, PlainStream):
            self._raw = AudioStreamDecoder(form.form)
            await self.push(head[form.begins_at :])
        else:
            self._container.set_result(form)
            await self.push(head)

    async def finish(self) -> None:
        """Wait until what came is heard; no more comes."""
        if self._container.done():
            (await asyncio.shield(self._stream)).end()
            await self._heard.wait()

    async def run(self) -> None:
        """Decode a container; ends only by its failure.

        Raises:
            InvalidAudioError: it is damaged.
            DecodersBusyError: there is no process for it.
        """
        async with self._decoders.stream(await self._container, self._owner) as stream:
            self._stream.set_result(stream)
            async for samples in stream:
                await self._hear(samples)
        self._heard.set()
        await asyncio.get_running_loop().create_future()
