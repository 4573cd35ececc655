"""Parley by gRPC: its models one by one, and whole calls with ``voice_agent``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from parley import protocol
from parley.asr.messages import AsrOptions, TranscribeRequest, TranscriptEvent
from parley.chat import ChatMessage
from parley.errors import ParleyError
from parley.llm.messages import Completed, TextDelta
from parley_client import NO_RETRY, AgentAudio, Call, connect
from parley_stages import (
    Generation,
    Recognition,
    ServerConnection,
    Synthesis,
    Transcriber,
    open_server,
)
from stages.drivers.options import EndpointOptions
from stages.drivers.recording import RecordingRecognizer
from stages.protocols import AnswerEnded, Delta, EndpointError, Pcm, Prompt, Sound, Text, Usage

AUTO = "auto"
FINALS_ONLY = "finals"
"""Option of a recogniser: ``yes`` asks for no partial texts."""


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except ParleyError as error:
        raise EndpointError(error.code) from error


@asynccontextmanager
async def open_recognizer(options: EndpointOptions) -> AsyncIterator[ParleyRecognizer]:
    """A recogniser of streams."""
    with _translated():
        async with open_server(options.url) as server:
            finals_only = options.extra.get(FINALS_ONLY) == "yes"
            yield ParleyRecognizer(server, options.model or AUTO, finals_only=finals_only)


@asynccontextmanager
async def open_transcriber(options: EndpointOptions) -> AsyncIterator[RecordingRecognizer]:
    """The model for recordings."""
    with _translated():
        async with (
            open_server(options.url) as server,
            Transcriber(server, model=options.model or None) as transcriber,
        ):

            async def transcribe(samples: Pcm) -> str:
                with _translated():
                    return (await transcriber.transcribe(samples, TranscribeRequest(words=False))).text

            yield RecordingRecognizer(transcribe)


@asynccontextmanager
async def open_language_model(options: EndpointOptions) -> AsyncIterator[ParleyLanguageModel]:
    """The language model."""
    with _translated():
        async with open_server(options.url) as server, Generation(server) as chat:
            yield ParleyLanguageModel(chat)


@asynccontextmanager
async def open_voice(options: EndpointOptions) -> AsyncIterator[ParleyVoice]:
    """A synthesizer; ``model`` is its name."""
    with _translated():
        async with (
            open_server(options.url) as server,
            Synthesis(server, model=options.model or AUTO) as synthesis,
        ):
            yield ParleyVoice(synthesis, options.voice or None)


@asynccontextmanager
async def open_agent(options: EndpointOptions) -> AsyncIterator[ParleyAgent]:
    """Whole calls."""
    yield ParleyAgent(options.url, options.voice or None)


class ParleyRecognizer:
    """See :class:`stages.protocols.Recognizer`."""

    streams = True

    def __init__(self, server: ServerConnection, model: str, *, finals_only: bool) -> None:
        self._server = server
        self._model = model
        self._options = (
            AsrOptions(words=False, partial_interval_ms=0) if finals_only else AsrOptions(words=False)
        )

    @asynccontextmanager
    async def open(self) -> AsyncIterator[_SpeechStream]:
        """See :class:`stages.protocols.Recognizer`."""
        with _translated():
            async with Recognition(self._server, self._options, model=self._model) as stream:
                yield _SpeechStream(stream)


class _SpeechStream:
    def __init__(self, stream: Recognition) -> None:
        self._stream = stream

    async def send(self, chunk: Pcm) -> None:
        with _translated():
            self._stream.send(chunk)

    async def end(self) -> None:
        self._stream.end()

    async def __aiter__(self) -> AsyncIterator[Text]:
        with _translated():
            async for event in self._stream:
                if isinstance(event, TranscriptEvent):
                    yield Text(event.text, event.is_final)


class ParleyLanguageModel:
    """See :class:`stages.protocols.LanguageModel`."""

    def __init__(self, chat: Generation) -> None:
        self._chat = chat

    async def answer(self, prompt: Prompt) -> AsyncGenerator[Delta | Usage, None]:
        """See :class:`stages.protocols.LanguageModel`."""
        messages = [
            ChatMessage(role="system", content=prompt.system),
            ChatMessage(role="user", content=prompt.user),
        ]
        with _translated():
            async with self._chat.answer(messages) as events:
                async for event in events:
                    match event:
                        case TextDelta():
                            yield Delta(event.text)
                        case Completed():
                            yield Usage(event.completion_tokens)


class ParleyVoice:
    """See :class:`stages.protocols.Voice`."""

    def __init__(self, synthesis: Synthesis, voice: str | None) -> None:
        self._synthesis = synthesis
        self._voice = voice

    async def speak(self, text: str) -> AsyncGenerator[Sound, None]:
        """See :class:`stages.protocols.Voice`."""
        with _translated():
            async with self._synthesis.speak(text, voice=self._voice) as speech:
                async for piece in speech:
                    yield Sound(piece.samples, piece.sample_rate)


class ParleyAgent:
    """See :class:`stages.protocols.Agent`; a call is tried once, so that a refusal counts."""

    def __init__(self, address: str, voice: str | None) -> None:
        self._address = address
        self._voice = voice

    @asynccontextmanager
    async def open(self) -> AsyncIterator[_CallLine]:
        """See :class:`stages.protocols.Agent`."""
        with _translated():
            async with connect(self._address, voice=self._voice, greeting="", retry=NO_RETRY) as call:
                yield _CallLine(call)
                await call.hang_up()


class _CallLine:
    def __init__(self, call: Call) -> None:
        self._call = call

    async def send(self, chunk: Pcm) -> None:
        with _translated():
            await self._call.send_audio(chunk)

    async def __aiter__(self) -> AsyncIterator[Sound | AnswerEnded]:
        with _translated():
            async for event in self._call:
                match event:
                    case AgentAudio():
                        yield Sound(event.samples, event.sample_rate)
                    case protocol.ResponseDone() | protocol.Interrupted():
                        yield AnswerEnded()
                    case _:
                        pass
