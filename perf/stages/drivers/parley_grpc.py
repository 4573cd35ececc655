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
from parley_stages import Generation, Recognition, Synthesis, Transcriber, open_server
from stages.drivers.common import EndpointOptions, recording_recognizer
from stages.protocols import (
    Agent,
    AnswerEnded,
    Delta,
    EndpointError,
    LanguageModel,
    Pcm,
    Prompt,
    Recognizer,
    Sound,
    Text,
    Usage,
    Voice,
)

_AUTO = "auto"
FINALS_ONLY = "finals"
"""Option of a recogniser: ``yes`` asks for no partial texts."""


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except ParleyError as error:
        raise EndpointError(error.code) from error


@asynccontextmanager
async def open_recognizer(options: EndpointOptions) -> AsyncIterator[Recognizer]:
    """A recogniser of streams."""
    asked = AsrOptions(words=False)
    if options.extra.get(FINALS_ONLY) == "yes":
        asked = AsrOptions(words=False, partial_interval_ms=0)
    with _translated():
        async with open_server(options.url) as server:

            @asynccontextmanager
            async def open_stream() -> AsyncIterator[_SpeechStream]:
                with _translated():
                    async with Recognition(server, asked, model=options.model or _AUTO) as stream:
                        yield _SpeechStream(stream)

            yield Recognizer(open_stream)


@asynccontextmanager
async def open_transcriber(options: EndpointOptions) -> AsyncIterator[Recognizer]:
    """The model for recordings."""
    with _translated():
        async with (
            open_server(options.url) as server,
            Transcriber(server, model=options.model or None) as transcriber,
        ):

            async def transcribe(samples: Pcm) -> str:
                with _translated():
                    return (await transcriber.transcribe(samples, TranscribeRequest(words=False))).text

            yield recording_recognizer(transcribe)


@asynccontextmanager
async def open_language_model(options: EndpointOptions) -> AsyncIterator[LanguageModel]:
    """The language model."""
    with _translated():
        async with open_server(options.url) as server, Generation(server) as chat:

            async def answer(prompt: Prompt) -> AsyncGenerator[Delta | Usage, None]:
                messages = [
                    ChatMessage(role="system", content=prompt.system),
                    ChatMessage(role="user", content=prompt.user),
                ]
                with _translated():
                    async with chat.answer(messages) as events:
                        async for event in events:
                            match event:
                                case TextDelta():
                                    yield Delta(event.text)
                                case Completed():
                                    yield Usage(event.completion_tokens)

            yield answer


@asynccontextmanager
async def open_voice(options: EndpointOptions) -> AsyncIterator[Voice]:
    """A synthesizer; ``model`` is its name."""
    with _translated():
        async with (
            open_server(options.url) as server,
            Synthesis(server, model=options.model or _AUTO) as synthesis,
        ):

            async def speak(text: str) -> AsyncGenerator[Sound, None]:
                with _translated():
                    async with synthesis.speak(text, voice=options.voice or None) as speech:
                        async for piece in speech:
                            yield Sound(piece.samples, piece.sample_rate)

            yield speak


@asynccontextmanager
async def open_agent(options: EndpointOptions) -> AsyncIterator[Agent]:
    """Whole calls, each tried once, so that a refusal counts."""

    @asynccontextmanager
    async def open_call() -> AsyncIterator[_CallLine]:
        with _translated():
            async with connect(options.url, voice=options.voice or None, greeting="", retry=NO_RETRY) as call:
                yield _CallLine(call)
                await call.hang_up()

    yield Agent(open_call)


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
