"""Deepgram's interfaces, of Parley's gateway or of Deepgram: streams and speech."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from urllib.parse import urlencode

import numpy as np
from websockets.asyncio.client import ClientConnection

from stages.drivers.common import (
    EndpointOptions,
    open_socket,
    readable,
    socket_errors,
    text_of,
)
from stages.protocols import RATE, EndpointError, Pcm, Recognizer, Sound, Text, Voice

_PUBLIC = "https://api.deepgram.com"
_LISTEN, _SPEAK = "nova-3", "aura-2-thalia-en"
_SPEECH_RATE = 24_000


def _headers(options: EndpointOptions) -> dict[str, str]:
    return {"Authorization": f"Token {options.key}"} if options.key else {}


def _address(options: EndpointOptions, path: str, **query: object) -> str:
    return f"{options.url or _PUBLIC}{path}?{urlencode(query)}"


@asynccontextmanager
async def open_recognizer(options: EndpointOptions) -> AsyncIterator[Recognizer]:
    """``WS /v1/listen``."""
    query = {"model": options.model or _LISTEN, "encoding": "linear16", "sample_rate": RATE}
    url = _address(options, "/v1/listen", **query, interim_results="true")

    @asynccontextmanager
    async def open_stream() -> AsyncIterator[_ListenStream]:
        async with open_socket(url, _headers(options)) as socket:
            yield _ListenStream(socket)

    yield Recognizer(open_stream)


class _ListenStream:
    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    async def send(self, chunk: Pcm) -> None:
        with socket_errors():
            await self._socket.send(chunk.astype("<i2").tobytes())

    async def end(self) -> None:
        with socket_errors():
            await self._socket.send('{"type": "CloseStream"}')

    async def __aiter__(self) -> AsyncIterator[Text]:
        with socket_errors():
            async for raw in self._socket:
                with readable():
                    message = json.loads(raw)
                    _check(message)
                    if message.get("type") != "Results":
                        continue
                    text = text_of(message["channel"]["alternatives"][0]["transcript"])
                    found = Text(text, is_final=message["is_final"] is True)
                yield found


def _check(message: dict[str, object]) -> None:
    """Raises EndpointError: it is an error."""
    if message.get("type") == "Error":
        raise EndpointError(str(message.get("code") or message.get("variant")))


@asynccontextmanager
async def open_voice(options: EndpointOptions) -> AsyncIterator[Voice]:
    """``WS /v1/speak``; ``voice`` is Deepgram's ``model``. A connection is used again for the next text."""
    model = options.voice or options.model or _SPEAK
    url = _address(options, "/v1/speak", model=model, encoding="linear16", sample_rate=_SPEECH_RATE)
    idle: list[ClientConnection] = []
    async with AsyncExitStack() as connections:

        async def speak(text: str) -> AsyncGenerator[Sound, None]:
            with socket_errors():
                socket = (
                    idle.pop()
                    if idle
                    else await connections.enter_async_context(open_socket(url, _headers(options)))
                )
                is_over = False
                try:
                    await socket.send(json.dumps({"type": "Speak", "text": text}))
                    await socket.send('{"type": "Flush"}')
                    async for raw in socket:
                        if isinstance(raw, bytes):
                            with readable():
                                samples = np.frombuffer(raw, "<i2").astype(np.int16)
                            yield Sound(samples, _SPEECH_RATE)
                            continue
                        with readable():
                            message = json.loads(raw)
                            _check(message)
                            is_over = message.get("type") == "Flushed"
                        if is_over:
                            break
                finally:
                    if is_over:
                        idle.append(socket)
                    else:
                        await socket.close()
                if not is_over:
                    raise EndpointError("closed early")

        yield speak
