"""OpenAI's Realtime interface by WebSocket: transcription, and whole calls."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

import msgspec
import numpy as np
from websockets.asyncio.client import ClientConnection

from parley.audio.pcm import Resampler
from stages.drivers.common import (
    EndpointOptions,
    open_socket,
    readable,
    socket_errors,
    text_of,
)
from stages.protocols import RATE, Agent, AnswerEnded, EndpointError, Pcm, Recognizer, Sound, Text

DETECTION = "turn_detection"
"""Option: ``server_vad`` or ``semantic_vad``; without it the endpoint's default."""
_PUBLIC = "https://api.openai.com/v1"
_TRANSCRIBE, _TALK = "gpt-4o-mini-transcribe", "gpt-realtime"
_RATE = 24_000
_FORMAT = {"type": "audio/pcm", "rate": _RATE}
_SYSTEM = "You are a friendly voice assistant. Keep answers short."


@asynccontextmanager
async def open_recognizer(options: EndpointOptions) -> AsyncIterator[Recognizer]:
    """A transcription session."""
    transcription = {"model": options.model or _TRANSCRIBE, "language": "en"}
    audio = {"input": {**_input(options), "transcription": transcription}}

    @asynccontextmanager
    async def open_stream() -> AsyncIterator[_TranscriptStream]:
        settings = {"type": "transcription", "audio": audio}
        async with _session(options, {"intent": "transcription"}, settings) as socket:
            yield _TranscriptStream(socket)

    yield Recognizer(open_stream)


@asynccontextmanager
async def open_agent(options: EndpointOptions) -> AsyncIterator[Agent]:
    """Whole calls."""
    voice = {"voice": options.voice} if options.voice else {}
    audio = {"input": _input(options), "output": {"format": _FORMAT, **voice}}

    @asynccontextmanager
    async def open_call() -> AsyncIterator[_CallLine]:
        settings = {"type": "realtime", "instructions": _SYSTEM, "audio": audio}
        async with _session(options, {"model": options.model or _TALK}, settings) as socket:
            yield _CallLine(socket)

    yield Agent(open_call)


def _input(options: EndpointOptions) -> dict[str, Any]:
    detection = options.extra.get(DETECTION)
    return {"format": _FORMAT, **({"turn_detection": {"type": detection}} if detection else {})}


@asynccontextmanager
async def _session(
    options: EndpointOptions, query: dict[str, str], settings: dict[str, Any]
) -> AsyncIterator[_Socket]:
    headers = {"Authorization": f"Bearer {options.key}"} if options.key else {}
    url = f"{options.url or _PUBLIC}/realtime?{urlencode(query)}"
    async with open_socket(url, headers) as connection:
        socket = _Socket(connection)
        await socket.send_event("session.update", session=settings)
        yield socket


class _Socket:
    """Events both ways, and audio in the rate of the protocol."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._resampler = Resampler(RATE, _RATE)

    async def send_event(self, kind: str, **fields: object) -> None:
        with socket_errors():
            await self._connection.send(msgspec.json.encode({"type": kind, **fields}).decode())

    async def send(self, chunk: Pcm) -> None:
        """Send audio, behind by the resampler's filter (a few milliseconds)."""
        samples = self._resampler.push(chunk)
        if len(samples):
            audio = base64.b64encode(samples.astype("<i2").tobytes()).decode()
            await self.send_event("input_audio_buffer.append", audio=audio)

    async def close(self) -> None:
        """End the connection, and with it the events."""
        with socket_errors():
            await self._connection.close()

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """The server's events; an error ends them.

        Raises:
            EndpointError: the server sent an error, or the connection broke.
        """
        with socket_errors():
            async for raw in self._connection:
                with readable():
                    event = msgspec.json.decode(raw, type=dict[str, Any])
                    if event["type"] == "error":
                        raise EndpointError(str(event["error"].get("code") or event["error"].get("type")))
                yield event


class _TranscriptStream:
    """The protocol has no end of a stream: it is over when no utterance is open any more."""

    def __init__(self, socket: _Socket) -> None:
        self._socket = socket
        self._open: dict[str, str] = {}
        """Partial texts of utterances that have no final one, by item."""
        self._is_speaking = self._is_ended = False

    async def send(self, chunk: Pcm) -> None:
        await self._socket.send(chunk)

    async def end(self) -> None:
        self._is_ended = True
        if not self._open:
            await self._socket.close()
        elif self._is_speaking:
            await self._socket.send_event("input_audio_buffer.commit")

    async def __aiter__(self) -> AsyncIterator[Text]:
        async for event in self._socket.events():
            with readable():
                text = self._take(event)
            if text is not None:
                yield text
                if text.is_final and self._is_ended and not self._open:
                    return

    def _take(self, event: Mapping[str, Any]) -> Text | None:
        """The text that an event brings."""
        match event["type"]:
            case "input_audio_buffer.speech_started":
                self._open[text_of(event["item_id"])] = ""
                self._is_speaking = True
            case "input_audio_buffer.speech_stopped":
                self._is_speaking = False
            case "conversation.item.input_audio_transcription.delta":
                item_id = text_of(event["item_id"])
                text = self._open.get(item_id, "") + text_of(event["delta"])
                self._open[item_id] = text
                return Text(text, is_final=False)
            case "conversation.item.input_audio_transcription.completed":
                self._open.pop(text_of(event["item_id"]), None)
                return Text(text_of(event["transcript"]), is_final=True)
            case "conversation.item.input_audio_transcription.failed":
                raise EndpointError(str(event["error"].get("code") or "failed"))
        return None


class _CallLine:
    def __init__(self, socket: _Socket) -> None:
        self._socket = socket

    async def send(self, chunk: Pcm) -> None:
        await self._socket.send(chunk)

    async def __aiter__(self) -> AsyncIterator[Sound | AnswerEnded]:
        async for event in self._socket.events():
            match event["type"]:
                case "response.output_audio.delta":
                    with readable():
                        audio = base64.b64decode(text_of(event["delta"]), validate=True)
                        samples = np.frombuffer(audio, "<i2").astype(np.int16)
                    yield Sound(samples, _RATE)
                case "response.done":
                    yield AnswerEnded()
