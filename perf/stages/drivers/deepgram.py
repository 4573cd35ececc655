"""Deepgram's interfaces, of Parley's gateway or of Deepgram: streams, recordings and speech."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from urllib.parse import urlencode

import httpx2
import numpy as np
from websockets.asyncio.client import ClientConnection

from stages.drivers.answers import IDENTITY, AnswerSize, BoundedTransport, readable, text_of
from stages.drivers.options import EndpointOptions
from stages.drivers.recording import RecordingRecognizer, to_wav
from stages.drivers.sockets import open_socket, translated
from stages.protocols import RATE, EndpointError, Pcm, Sound, Text

ENDPOINTING = "endpointing"
"""Option of a stream: the pause that ends an utterance (milliseconds)."""
_PUBLIC = "https://api.deepgram.com"
_LISTEN, _SPEAK = "nova-3", "aura-2-thalia-en"
_SPEECH_RATE = 24_000
_REQUEST_S = 30.0


def _headers(options: EndpointOptions) -> dict[str, str]:
    return {"Authorization": f"Token {options.key}"} if options.key else {}


def _address(options: EndpointOptions, path: str, **query: object) -> str:
    return f"{options.url or _PUBLIC}{path}?{urlencode(query)}"


@asynccontextmanager
async def open_recognizer(options: EndpointOptions) -> AsyncIterator[DeepgramRecognizer]:
    """``WS /v1/listen``."""
    yield DeepgramRecognizer(options)


@asynccontextmanager
async def open_transcriber(options: EndpointOptions) -> AsyncIterator[RecordingRecognizer]:
    """``POST /v1/listen``."""
    url = _address(options, "/v1/listen", model=options.model or _LISTEN, smart_format="true")
    headers = {**_headers(options), **IDENTITY}
    async with httpx2.AsyncClient(
        headers=headers, timeout=_REQUEST_S, transport=BoundedTransport()
    ) as client:

        async def transcribe(samples: Pcm) -> str:
            try:
                answer = await client.post(
                    url, content=to_wav(samples), headers={"Content-Type": "audio/wav"}
                )
                answer.raise_for_status()
            except httpx2.HTTPStatusError as error:
                raise EndpointError(f"HTTP {error.response.status_code}") from error
            except httpx2.HTTPError as error:
                raise EndpointError("no connection") from error
            with readable():
                return text_of(answer.json()["results"]["channels"][0]["alternatives"][0]["transcript"])

        yield RecordingRecognizer(transcribe)


@asynccontextmanager
async def open_voice(options: EndpointOptions) -> AsyncIterator[DeepgramVoice]:
    """``WS /v1/speak``; ``voice`` is Deepgram's ``model``."""
    async with AsyncExitStack() as stack:
        yield DeepgramVoice(options, stack)


class DeepgramRecognizer:
    """See :class:`stages.protocols.Recognizer`."""

    streams = True

    def __init__(self, options: EndpointOptions) -> None:
        pause = options.extra.get(ENDPOINTING)
        self._url = _address(
            options,
            "/v1/listen",
            model=options.model or _LISTEN,
            encoding="linear16",
            sample_rate=RATE,
            interim_results="true",
            **({"endpointing": pause} if pause else {}),
        )
        self._headers = _headers(options)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[_ListenStream]:
        """See :class:`stages.protocols.Recognizer`."""
        async with open_socket(self._url, self._headers) as socket:
            yield _ListenStream(socket)


class _ListenStream:
    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    async def send(self, chunk: Pcm) -> None:
        with translated():
            await self._socket.send(chunk.astype("<i2").tobytes())

    async def end(self) -> None:
        with translated():
            await self._socket.send('{"type": "CloseStream"}')

    async def __aiter__(self) -> AsyncIterator[Text]:
        size = AnswerSize()
        with translated():
            async for raw in self._socket:
                size.add(raw)
                with readable():
                    text = _read_result(raw)
                if text is not None:
                    yield text


def _read_result(raw: str | bytes) -> Text | None:
    """The text of a message; None: the message has none."""
    message = json.loads(raw)
    match message.get("type"):
        case "Results":
            text = text_of(message["channel"]["alternatives"][0]["transcript"])
            return Text(text, is_final=message["is_final"] is True)
        case "Error":
            raise EndpointError(str(message.get("code") or message.get("variant")))
    return None


class DeepgramVoice:
    """See :class:`stages.protocols.Voice`. A connection is used again, one text after the other.

    Args:
        options: of the endpoint.
        stack: owns the connections.
    """

    def __init__(self, options: EndpointOptions, stack: AsyncExitStack) -> None:
        model = options.voice or options.model or _SPEAK
        self._url = _address(options, "/v1/speak", model=model, encoding="linear16", sample_rate=_SPEECH_RATE)
        self._headers = _headers(options)
        self._stack = stack
        self._idle: list[ClientConnection] = []

    async def speak(self, text: str) -> AsyncGenerator[Sound, None]:
        """See :class:`stages.protocols.Voice`."""
        with translated():
            socket = self._idle.pop() if self._idle else await self._connect()
            is_over = False
            size = AnswerSize()
            try:
                await socket.send(json.dumps({"type": "Speak", "text": text}))
                await socket.send('{"type": "Flush"}')
                async for raw in socket:
                    size.add(raw)
                    with readable():
                        sound = _read_sound(raw)
                    if sound is None:
                        is_over = True
                        break
                    if len(sound.samples):
                        yield sound
            finally:
                if is_over:
                    self._idle.append(socket)
                else:
                    await socket.close()
            if not is_over:
                raise EndpointError("closed early")

    async def _connect(self) -> ClientConnection:
        return await self._stack.enter_async_context(open_socket(self._url, self._headers))


def _read_sound(raw: str | bytes) -> Sound | None:
    """The audio of a message, which may have none; None: no more follows."""
    if isinstance(raw, bytes):
        return Sound(np.frombuffer(raw, "<i2").astype(np.int16), _SPEECH_RATE)
    message = json.loads(raw)
    match message.get("type"):
        case "Flushed":
            return None
        case "Error":
            raise EndpointError(str(message.get("code") or message.get("variant")))
    return Sound(np.zeros(0, np.int16), _SPEECH_RATE)
